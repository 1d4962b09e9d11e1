"""The trainer's pending call of the rollout, which runs the other end of a sync.

verl asks the rollout's server to receive, sends, and looks at the call's result only after that. A rollout whose process
ended before it connected has nobody who could tell the sender; but the call fails, and the sender can be told of that.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import CancelledError, Future
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from xpu_shim.core.log import logger
from xpu_shim.weights.errors import PeerFailed

if TYPE_CHECKING:
    from xpu_shim.weights.sender import Sender

_log = logger("xpu_shim.weights")

#: Seconds a sender has to learn by itself why the call failed: what the receiver says names a tensor, the call does not.
GRACE = 1.0

_pending: ContextVar[Any] = ContextVar("xpu_shim_weight_sync_call", default=None)


def announce(call: Any) -> None:
    """Name the call that the next sync of this task belongs to.

    Args:
        call: a Ray ObjectRef, or anything else with a `future()` that gives a `concurrent.futures.Future`; None where this
            rank has not made the call itself.
    """
    _pending.set(call)


def take() -> Any:
    """The call announced in this task, once; None if there is none."""
    call = _pending.get()
    _pending.set(None)
    return call


class Watch:
    """Stops a sender when the call fails.

    Args:
        call: see `announce`.
        sender: what to stop.
    """

    def __init__(self, call: Any, sender: Sender) -> None:
        #: What became of the call, if it failed while the sender was at work.
        self.error: BaseException | None = None
        self._sender = sender
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()
        self._over = False
        future = getattr(call, "future", None)
        if callable(future):
            future().add_done_callback(self._ended)

    def over(self) -> None:
        """The sync has ended: the call is the caller's business again."""
        with self._lock:
            self._over = True
            if self._timer is not None:
                self._timer.cancel()

    def failure(self) -> PeerFailed:
        """`error` as this package reports errors of the other end; its cause is the original."""
        error = self.error
        assert error is not None
        failed = PeerFailed(
            "weight sync: the rollout's call of update_weights_from_ipc failed while the sender was "
            f"{self._sender.doing()}: {type(error).__name__}: {error}"
        )
        failed.peer_type, failed.peer_message = type(error).__name__, str(error)
        failed.__cause__ = error
        return failed

    def _ended(self, future: Future) -> None:
        try:
            error = future.exception()
        except CancelledError as cancelled:
            error = cancelled
        if error is None:
            return
        with self._lock:
            if self._over:
                return
            _log.info("weight sync: the rollout's call failed (%s)", type(error).__name__)
            self._timer = threading.Timer(GRACE, self._stop, (error,))
            self._timer.daemon = True
            self._timer.start()

    def _stop(self, error: BaseException) -> None:
        with self._lock:
            if self._over:
                return
            self.error = error
        with contextlib.suppress(OSError):
            self._sender.interrupt()
