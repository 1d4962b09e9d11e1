"""What Ray wants to know of Intel GPUs, answered from sysfs; see `xpu_shim.patches.ray.intel_accelerator`."""

from __future__ import annotations

import os

from xpu_shim.core.log import logger
from xpu_shim.devices import assignment, settings
from xpu_shim.devices import machine as _machine
from xpu_shim.intel.visibility import COMPOSITE, MASK, SELECTOR, Device, mask_of, visible_devices

_log = logger("xpu_shim.devices")

#: PCI device id to Ray's accelerator type: "Intel-GPU-" and the last two words of the device's name.
TYPES = {
    0x0B69: "Intel-GPU-Max-1450",
    0x0BD5: "Intel-GPU-Max-1550",
    0x0BD6: "Intel-GPU-Max-1550",
    0x0BD7: "Intel-GPU-Max-1350",
    0x0BD8: "Intel-GPU-Max-1350",
    0x0BD9: "Intel-GPU-Max-1100",
    0x0BDA: "Intel-GPU-Max-1100",
    0x0BDB: "Intel-GPU-Max-1100",
    0xE211: "Intel-GPU-B60-Graphics",
    0xE212: "Intel-GPU-B50-Graphics",
}


def count() -> int:
    """Number of devices a node has for training, without any mask: Ray itself applies the visible ids to it."""
    return len(_machine.machine().devices(None))


def visible_ids() -> list[str] | None:
    """Ids of the devices this process may use, as a mask names them; None where the machine is not known and no mask is
    set. The same in every Ray release.

    Raises:
        xpu_shim.intel.visibility.VisibilityError: if the mask is malformed or leaves no GPU.
    """
    here = _machine.machine()
    if not here.cards:
        return None
    return [_id(device, here) for device in _machine.allowed_devices()]


def narrow(ids: list[str]) -> None:
    """Take Ray's assignment for this worker: writes the mask, except where verl's worker pins itself.

    That is a member of a worker group, unless `XPU_SHIM_VISIBILITY=mask`. Any other actor or task with GPUs, such as
    the user's own, gets the mask that Ray documents: nothing pins it, and without a mask it would compute on card 0.

    Raises:
        SettingError: if ``XPU_SHIM_VISIBILITY`` has an unknown value.
    """
    os.environ.pop(SELECTOR, None)  # Ray up to 2.57 may have inherited one it wrote itself
    pins_itself = settings.visibility() == settings.PIN and assignment.in_worker_group()
    if pins_itself or not ids:
        return
    _machine.remember_mask()
    here = _machine.machine()
    allowed = visible_devices(_machine.allowed_mask(), here.cards, here.hierarchy)
    wanted = [device for device in allowed if _id(device, here) in ids]
    os.environ[MASK] = mask_of(wanted, here.cards, here.hierarchy) if wanted else ",".join(map(str, ids))
    _log.info("%s=%s, as Ray assigned", MASK, os.environ[MASK])


def accelerator_type() -> str | None:
    """Ray's name for the node's first discrete GPU, or None if it is not in the table."""
    gpus = _machine.machine().gpus
    return next((TYPES.get(gpu.device_id) for gpu in gpus if gpu.discrete), None)


def _id(device: Device, here: _machine.Machine) -> str:
    # A single tile of a card keeps its own name: a mask made from the card's would widen the user's. Several tiles of
    # one card cannot be said in one id; they go by the card's.
    if here.hierarchy == COMPOSITE and len(device.tiles) == 1 < here.cards[device.card].tiles:
        return f"{device.ordinal}.{device.tiles[0]}"
    return str(device.ordinal)
