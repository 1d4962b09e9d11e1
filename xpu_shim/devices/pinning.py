"""Pin this process to its device, once, before anything else touches it."""

from __future__ import annotations

import os
from typing import NamedTuple

from xpu_shim.core.log import logger, warn_once
from xpu_shim.devices import assignment, settings
from xpu_shim.devices.machine import check_selector, machine, masks
from xpu_shim.intel.visibility import MASK, Device, VisibilityError, position

_log = logger("xpu_shim.devices")


class PinError(RuntimeError):
    """No device for this process; the message says what was assigned, what is visible and what to do."""


class Pinned(NamedTuple):
    """Where this process sits."""

    #: Torch index.
    index: int  # type: ignore[assignment]
    #: The device in the machine; None where the machine is not known.
    device: Device | None
    #: Who assigned it.
    source: str


_pinned: Pinned | None = None


def pinned() -> Pinned | None:
    """Where this process was pinned, or None if it was not."""
    return _pinned


def pin() -> Pinned | None:
    """Select the device a scheduler assigned to this process; None if none did (a driver, a worker without a GPU).

    The first call decides; later ones answer the same.

    Raises:
        PinError: if the process sees no device or fewer than the assignment needs.
        xpu_shim.intel.visibility.VisibilityError: if a mask is malformed, or does not contain what was assigned.
    """
    global _pinned
    if _pinned is not None:
        return _pinned
    assigned = assignment.current()
    if assigned is None:
        return None
    check_selector()
    import torch

    count = torch.xpu.device_count()
    if count == 0:
        raise PinError(
            f"this process sees no XPU, but {assigned.source} assigned device {_text(assigned)}. "
            f"{MASK}={os.environ.get(MASK)!r}; sysfs shows {len(machine().gpus)} Intel GPU(s). "
            "Check the driver, /dev/dri and the mask."
        )
    here = machine(count)
    if assigned.index is not None:
        index = assigned.index
        if index == 0 and settings.visibility() == settings.MASK_ONE:
            warn_once(
                "XPU_SHIM_VISIBILITY='mask' has no effect on ranks of torchrun: verl selects their device by LOCAL_RANK, "
                f"so they see all allowed devices and are pinned. Unset it, or restrict this node with {MASK}."
            )
        if index >= count:
            raise PinError(
                f"local rank {index} needs {index + 1} devices, but this process sees {count} "
                f"({MASK}={os.environ.get(MASK)!r}). Start at most {count} processes on this node."
            )
    else:
        index = _index(str(assigned.ordinal), count, here)
    torch.xpu.set_device(index)
    _pinned = Pinned(index, _device(index, count, here), assigned.source)
    _log.info("pinned to xpu:%d of %d, assigned %s by %s", index, count, _text(assigned), assigned.source)
    return _pinned


def _index(ordinal: str, count: int, here) -> int:
    known = masks()
    try:
        return position(ordinal, count, known, here.cards, here.hierarchy)
    except VisibilityError:
        # The runtime may know fewer cards than sysfs (one failed to initialise). Without any mask, Ray's numbers and
        # torch's still name the same devices; whether ranks are distinct is checked when the process group exists.
        if any(known) or not ordinal.isdigit() or int(ordinal) >= count:
            raise
        warn_once(
            f"sysfs shows {len(here.devices(None))} devices but torch sees {count}; taking Ray's number {ordinal} as "
            "the torch index. Run `xpu-shim doctor` to find out which card is missing."
        )
        return int(ordinal)


def _device(index: int, count: int, here) -> Device | None:
    for mask in (*masks(), None):
        devices = here.devices(mask)
        if len(devices) == count:
            return devices[index]
    return None


def _text(assigned: assignment.Assignment) -> str:
    return str(assigned.index if assigned.ordinal is None else assigned.ordinal)
