"""What torch, the kernel and this process's history say of one XPU: the sources for `xpu_shim.rollout.memory`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from xpu_shim.core.log import logger, warn_once
from xpu_shim.devices.machine import machine, masks
from xpu_shim.intel.visibility import VisibilityError
from xpu_shim.rollout.holders import Holder, holders
from xpu_shim.rollout.memory import ARITHMETIC, Known, Reading, read

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logger("xpu_shim.rollout")

#: Index to the last believed reading and what the allocator held then.
_before: dict[int, tuple[Reading, int]] = {}
#: (index, sources) whose rejection was warned about.
_told: set[tuple[int, str]] = set()


def memory(index: int, first: tuple[str, Callable[[], tuple[int, int]]] | None = None) -> Reading:
    """Free and total memory of a device in bytes.

    Args:
        index: torch index of the device.
        first: name and function of a source to ask before torch's.

    Raises:
        xpu_shim.rollout.memory.NoMemoryReadingError: if no source answers and the device's size is not known.
    """
    import torch

    sources = [] if first is None else [first]
    if hasattr(torch.accelerator, "get_memory_info"):
        # vLLM 0.25 and newer put their own function here.
        sources.append(("torch.accelerator.get_memory_info", lambda: torch.accelerator.get_memory_info(index)))
    sources.append(("torch.xpu.mem_get_info", lambda: torch.xpu.mem_get_info(index)))
    reserved = torch.xpu.memory_reserved(index)
    before, reserved_before = _before.get(index, (None, 0))
    everybody = card_holders(index)
    known = Known(
        reserved=reserved,
        size=_size(index),
        held=None if everybody is None else sum(holder.held for holder in everybody),
        before=before,
        reserved_before=reserved_before,
    )
    reading = read(sources, known, lambda size: _can_allocate(index, size))
    _before[index] = (reading, reserved)
    _tell(index, reading)
    return reading


def own_share(index: int) -> int | None:
    """Device memory in bytes this process holds, allocator or not; None where the kernel does not tell."""
    everybody = card_holders(index)
    if everybody is None:
        return None
    return next((holder.held for holder in everybody if holder.pid == os.getpid()), 0)


def card_holders(index: int) -> tuple[Holder, ...] | None:
    """The processes that hold memory of a device; None where the kernel does not tell or the card is not known."""
    import torch

    try:
        here = machine()
    except VisibilityError:
        return None
    if not here.gpus:
        return None
    count = torch.xpu.device_count()
    for mask in (*masks(), None):
        devices = here.devices(mask)
        if len(devices) == count and index < count:
            device = devices[index]
            address = here.gpus[device.card].address
            return holders(address, device.tiles) if address else None
    return None


def forget() -> None:
    """Forget earlier readings; for a process that starts anew with another card, and for tests."""
    _before.clear()
    _told.clear()


def _size(index: int) -> int:
    import torch

    try:
        return int(torch.xpu.get_device_properties(index).total_memory)
    except Exception:
        return 0


def _can_allocate(index: int, size: int) -> bool:
    import torch

    try:
        block = torch.empty(size, dtype=torch.uint8, device=f"xpu:{index}")
    except RuntimeError:  # torch.OutOfMemoryError is one
        return False
    del block
    torch.xpu.empty_cache()
    return True


def _tell(index: int, reading: Reading) -> None:
    """One warning a process for each set of sources that are not believed; the rest at level info."""
    if not reading.rejected:
        return
    instead = "worked out from what is allocated" if reading.source == ARITHMETIC else f"from {reading.source}"
    text = (
        f"xpu:{index}: memory readings are not believed ({'; '.join(reading.rejected)}). Taking free "
        f"{reading.free >> 20} MiB of {reading.total >> 20} MiB, {instead}."
    )
    key = (index, ",".join(line.partition(":")[0] for line in reading.rejected))
    if key in _told:
        _log.info("%s", text)
    else:
        _told.add(key)
        warn_once(f"{text} A newer GPU driver (compute-runtime 26.18) reads it right.")
