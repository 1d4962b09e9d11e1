"""The first thing done in a process with work for an Intel GPU: a clean environment, and its mask noted."""

from __future__ import annotations

import os

from xpu_shim.core.log import warn_once
from xpu_shim.devices.machine import remember_mask
from xpu_shim.intel import environment
from xpu_shim.intel.visibility import VisibilityError


def prepare(torch_version: str = "") -> tuple[environment.Change, ...]:
    """Put the environment policy into effect and note the mask before Ray narrows it; returns what was changed.

    A malformed mask or selector is logged and left alone: an import is not the place to stop a program. The first use
    of a device is, and raises the same words.
    """
    try:
        changes = environment.apply(os.environ, torch_version)
    except VisibilityError as error:
        warn_once(str(error))
        changes = ()
    remember_mask()
    return changes
