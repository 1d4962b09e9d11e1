"""The way to Intel's Instrumentation and Tracing Technology: Intel's `ittapi` if it is installed, else torch's own.

Both hand what they get to the collector named by ``INTEL_LIBITTNOTIFY64`` (VTune sets it for the programs it starts)
and do nothing without one. `ittapi` has a domain of our own and can pause and resume the collection;
`torch.profiler.itt` sends ranges in torch's domain and has no pause.

Source: https://github.com/intel/ittapi, https://docs.pytorch.org/docs/stable/profiler.html.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

#: The domain of our ranges, as VTune shows it.
DOMAIN = "verl"

#: String handles are never freed by ITT, so names made up at run time are not kept beyond this many.
KEPT_NAMES = 1024


class Backend(NamedTuple):
    """`push(name)` opens a range on this thread, `pop()` ends the innermost one; `pause` and `resume` may be None."""

    name: str
    push: Callable[[str], object]
    pop: Callable[[], object]
    pause: Callable[[], None] | None
    resume: Callable[[], None] | None


@cache
def backend() -> Backend:
    """The backend of this process; found at first use, because importing torch or `ittapi` costs time.

    Raises:
        RuntimeError: if torch was built without ITT and `ittapi` is not installed.
    """
    try:
        import ittapi
    except ImportError:
        return _of_torch()
    return _of_ittapi(ittapi)


def _of_torch() -> Backend:
    from torch.profiler import itt

    if not itt.is_available():
        raise RuntimeError(
            "this torch is built without ITT, so no ranges can be sent to VTune. Install Intel's package: "
            "pip install ittapi"
        )
    return Backend("torch.profiler.itt", itt.range_push, itt.range_pop, None, None)


def _of_ittapi(ittapi) -> Backend:
    domain = ittapi.domain(DOMAIN)
    begin, end, handle_of = ittapi.task_begin, ittapi.task_end, ittapi.string_handle
    handles: dict[str, object] = {}

    def push(name: str) -> None:
        handle = handles.get(name)
        if handle is None:
            handle = handle_of(name)
            if len(handles) < KEPT_NAMES:
                handles[name] = handle
        begin(domain, handle)

    def pop() -> None:
        end(domain)

    return Backend("ittapi", push, pop, ittapi.pause, ittapi.resume)
