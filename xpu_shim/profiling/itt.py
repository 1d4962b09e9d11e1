"""The way to Intel's Instrumentation and Tracing Technology: Intel's `ittapi` if it is installed, else torch's own.

Both hand what they get to the collector named by ``INTEL_LIBITTNOTIFY64`` (VTune sets it for the programs it starts)
and do nothing without one. `ittapi` has a domain of our own and pauses and resumes the collection; `torch.profiler.itt`
sends ranges in torch's domain and has no pause, but the ITT stub inside torch's library does.

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
    return Backend("torch.profiler.itt", itt.range_push, itt.range_pop, _control("pause"), _control("resume"))


def _control(name: str) -> Callable[[], None] | None:
    """`pause` or `resume` of the ITT stub that torch is linked with, or None if torch's library does not show it.

    The stub's function pointers are exported data, `__itt_pause_ptr__3_0` (ITT API 3.0): null without a collector, and
    replaced when the collector is loaded, which is why they are read at each call.
    """
    import ctypes
    from pathlib import Path

    import torch

    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        pointer = ctypes.c_void_p.in_dll(ctypes.CDLL(str(path)), f"__itt_{name}_ptr__3_0")
    except (OSError, ValueError):
        return None
    function = ctypes.CFUNCTYPE(None)

    def control() -> None:
        if pointer.value:
            function(pointer.value)()

    return control


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
