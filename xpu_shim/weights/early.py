"""A receiving process that fails before it receives: the sender is told, instead of waiting for somebody to come.

The rollout's worker prepares its model before it makes a receiver, and a receiver reads its settings and asks for its
device before it connects. Whatever is raised there is told to the sender as an error of the receiver.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

from xpu_shim.core.log import logger
from xpu_shim.weights import legacy, settings, wire
from xpu_shim.weights.errors import WeightSyncSettingError
from xpu_shim.weights.rendezvous import KEY, ReceiverSide
from xpu_shim.weights.wire import Kind

_log = logger("xpu_shim.weights")

_thread = threading.local()


def connects() -> None:
    """From here on this thread's receiver reports for itself."""
    _thread.connects = True


@contextlib.contextmanager
def told(address: Callable[[], str]) -> Iterator[None]:
    """An exception raised inside, in this thread and before `connects`, is told to the sender and then passed on.

    The sender may be a moment behind: this waits for it as long as a receiver would.

    Args:
        address: gives verl's address; only called after a failure.
    """
    _thread.connects = False
    try:
        yield
    except Exception as error:
        if not _thread.connects:
            connects()
            _tell(address, error)
        raise


def _tell(address: Callable[[], str], error: Exception) -> None:
    what = f"{type(error).__name__}: {error}"
    try:
        endpoint = address()
    except Exception as unknown:  # made of what may be missing: a device, a rank
        _log.warning("weight sync: failed before it began (%s); no address to tell the sender: %s", what, unknown)
        return
    _log.warning("weight sync: failed before it began (%s); telling the sender at %s", what, endpoint)
    try:
        timeout = settings.read().timeout
    except WeightSyncSettingError:  # perhaps the very error
        timeout = settings.Settings().timeout
    try:
        meeting = ReceiverSide(endpoint, timeout)
        try:
            _report(meeting, error)
        finally:
            meeting.close()
    except Exception as silent:  # the first error is the one to raise
        _log.warning("weight sync: the sender could not be told: %s", silent)


def _report(meeting: ReceiverSide, error: Exception) -> None:
    first = meeting.hear("the sender, to tell it of an error")
    channel = meeting.open_channel(first)
    if channel is None:  # it hears of it from the rollout server, once all is taken from it
        legacy.discard(meeting)
        return
    try:
        channel.send(Kind.HELLO, {"token": first[KEY]["token"], "pid": os.getpid(), "group_bytes": 1})
        channel.send(Kind.ERROR, wire.report(error, "", 0))
    finally:
        channel.close()  # what was sent stays readable
