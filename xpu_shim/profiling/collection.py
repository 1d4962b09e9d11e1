"""Starts and stops what VTune collects: resume and pause, counted, because several profilers of a process overlap."""

from __future__ import annotations

import threading

from xpu_shim.core.log import warn_once
from xpu_shim.profiling import itt

_lock = threading.Lock()
_running = 0


def prepare() -> None:
    """Pause until the first `resume`, so that a collection that was not started paused has only the chosen steps."""
    with _lock:
        if _running == 0:
            _call("pause")


def resume() -> None:
    """Collect from now on; nested calls need as many `pause`."""
    global _running
    with _lock:
        _running += 1
        if _running == 1:
            _call("resume")


def pause() -> None:
    """Stop collecting once every `resume` has its `pause`; one too many does nothing."""
    global _running
    with _lock:
        if _running == 0:
            return
        _running -= 1
        if _running == 0:
            _call("pause")


def running() -> bool:
    """Whether this process has resumed the collection and not paused it again."""
    return _running > 0


def _call(name: str) -> None:
    function = getattr(itt.backend(), name)
    if function is None:
        warn_once(
            "profiler.tool=vtune: the collection cannot be paused and resumed with this torch and without Intel's "
            "ittapi; VTune sees the ranges of the chosen steps but collects all the time. Next step: "
            "pip install ittapi"
        )
    else:
        function()
