"""Whether there is an Intel GPU for this process, without the driver being touched."""

from __future__ import annotations

import os

from xpu_shim.devices.machine import machine
from xpu_shim.devices.pinning import pinned
from xpu_shim.intel.visibility import MASK, VisibilityError


def certainly_available() -> bool:
    """True if sysfs shows a device that the mask of this process leaves visible, and torch has not opened devices yet.

    False says nothing: then torch has to look.
    """
    import torch

    if not torch.xpu._is_compiled() or torch.xpu.is_initialized() or pinned() is not None:
        return False
    try:
        here = machine()
        return bool(here.gpus) and bool(here.devices(os.environ.get(MASK)))
    except VisibilityError:
        return False
