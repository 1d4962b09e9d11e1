"""Who was at the other end of the last sync at an address, and whether that process still lives.

A process that ended between two syncs leaves nothing to connect to and nothing that closes: its pid is all there is to
watch. The other end of an address is the same process for a whole run, so if it is gone nobody else will come.
"""

from __future__ import annotations

import time

from xpu_shim.weights import stale
from xpu_shim.weights.channel import running

#: Seconds from noticing that it is gone until a wait for it ends; another process may have taken its place after all.
PATIENCE = 3.0

#: (this end, address) to pid and start time of the process at the other end.
_last: dict[tuple[str, str], tuple[int, int]] = {}


def remember(me: str, endpoint: str, pid: int) -> None:
    """Note that `pid` (0: unknown, in another pid namespace) is at the other end of `endpoint`.

    Args:
        me: "sender" or "receiver".
    """
    if pid:
        _last[me, endpoint] = (pid, stale.start_time(pid))


class Watch:
    """For one wait at an address."""

    def __init__(self, me: str, endpoint: str) -> None:
        self._key = (me, endpoint)
        self._pid, self._started = _last.get(self._key, (0, 0))
        self._since: float | None = None

    def gone(self) -> int:
        """The pid of the last sync's partner if that process has ended, `PATIENCE` seconds after this was first seen;
        else 0. Cheap enough to be asked a few times a second."""
        if not self._pid:
            return 0
        if self._since is None:
            if running(self._pid) and stale.start_time(self._pid) == self._started:
                return 0
            self._since = time.monotonic()
        if time.monotonic() - self._since < PATIENCE:
            return 0
        _last.pop(self._key, None)
        return self._pid
