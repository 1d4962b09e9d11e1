"""Whether this process sends ranges. Markers read two plain attributes of this module: being off costs next to nothing.

In `auto` a process sends ranges while something in it profiles: a training rank or a rollout engine from the start to
the stop of a profiled step, the driver for as long as `global_profiler.steps` names any steps.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from xpu_shim.profiling import settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from xpu_shim.profiling.ranges import Range, Ranges

#: Whether markers send ranges now.
on = False
#: Whether it is settled that this is an Intel platform, so that upstream's own markers are not asked.
ours = False

_lock = threading.Lock()
_reasons: dict[str, int] = {}
_ranges: Ranges | None = None


def is_intel() -> bool:
    """Whether verl's device is xpu; settled at the first use and remembered if it is."""
    global ours
    if not ours:
        from verl.utils.device import get_device_name

        ours = get_device_name() == "xpu"
        if ours:
            _update()
    return ours


def begin(reason: str) -> None:
    """From now on this process profiles, for `reason`; counted, so each needs its own `end`."""
    with _lock:
        _reasons[reason] = _reasons.get(reason, 0) + 1
    if is_intel():
        _update()


def end(reason: str) -> None:
    """`reason` to profile is over; one that never began does nothing."""
    with _lock:
        count = _reasons.pop(reason, 0) - 1
        if count > 0:
            _reasons[reason] = count
    _update()


def ranges() -> Ranges:
    """The ranges of this process."""
    global _ranges, start_range, end_range
    if _ranges is None:
        from xpu_shim.profiling.itt import backend
        from xpu_shim.profiling.ranges import Ranges

        with _lock:
            if _ranges is None:
                _ranges = Ranges(backend().push, backend().pop)
                start_range, end_range = _ranges.begin, _ranges.end
    return _ranges


def _begin_first(name: str) -> Range:
    return ranges().begin(name)


def _end_first(opened: Range) -> None:
    ranges().end(opened)


#: Begins a range on this thread, whether markers are on or not; from the first use on `Ranges.begin` itself.
start_range: Callable[[str], Range] = _begin_first
#: Ends a range that `start_range` began.
end_range: Callable[[Range], None] = _end_first


def _update() -> None:
    global on
    setting = settings.markers()
    wanted = ours and (setting == settings.ALWAYS or (setting == settings.AUTO and bool(_reasons)))
    if wanted and not on:
        try:
            ranges()
        except RuntimeError as error:
            from xpu_shim.core.log import warn_once

            warn_once(f"markers stay off: {error}")
            return
    on = wanted
