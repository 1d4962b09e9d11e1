"""Whether torch.compile can generate code for this XPU."""

from __future__ import annotations

import functools
from typing import Any

from xpu_shim.core.log import logger


@functools.cache
def reason_not_to_compile() -> str | None:
    """Why torch.compile's default backend cannot work on XPU here; None if it can.

    Inductor writes Triton kernels, and Triton needs its Intel backend with a driver that answers. Asking the driver
    touches the device, so this is for processes that have chosen theirs.
    """
    try:
        from triton.backends import backends
    except Exception as error:  # a broken triton raises whatever its extension module likes
        return f"triton cannot be imported ({type(error).__name__}: {error})"
    if "intel" not in backends:
        return f"triton has no Intel backend (it has: {', '.join(sorted(backends)) or 'none'})"
    try:
        if backends["intel"].driver.is_active():
            return None
    except Exception as error:
        return f"triton's Intel driver fails ({type(error).__name__}: {error})"
    return "triton's Intel driver finds no device"


def run_eagerly(owner: Any, *attributes: str) -> None:
    """Give back the functions that torch.compile wrapped, under attributes of `owner`, if they cannot be compiled here.

    torch.compile is lazy: nothing was compiled yet when this is called after a constructor.
    """
    reason = None
    for name in attributes:
        eager = getattr(getattr(owner, name, None), "_torchdynamo_orig_callable", None)
        if eager is None:
            continue
        reason = reason or reason_not_to_compile()
        if reason is None:
            return
        setattr(owner, name, eager)
        logger("xpu_shim.models").info("%s runs without torch.compile: %s", name, reason)
