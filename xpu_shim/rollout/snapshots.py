"""vLLM's `MemorySnapshot` with readings that can be right."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: On a snapshot: what this process held of the device then, in bytes, or None where the kernel does not tell.
HELD = "_xpu_shim_held"


def measure(snapshot: Any, original: Callable[[Any], None]) -> None:
    """Measure as vLLM does, then replace free and total memory, and what follows from them, by a believed reading.

    Raises:
        xpu_shim.rollout.memory.NoMemoryReadingError: if nothing tells the size of the device.
    """
    if snapshot.device_.type != "xpu":
        original(snapshot)
        return
    from xpu_shim.rollout import device

    try:
        original(snapshot)
    except Exception as error:
        failure: Exception | None = error
    else:
        failure = None
    index = index_of(snapshot.device_)
    numbers = (snapshot.free_memory, snapshot.total_memory)

    def as_measured() -> tuple[int, int]:
        if failure is not None:
            raise failure
        return numbers

    reading = device.memory(index, ("vLLM", as_measured))
    if failure is not None:
        _fill(snapshot, index)
    setattr(snapshot, HELD, device.own_share(index))
    put(snapshot, reading.free, reading.total)


def put(snapshot: Any, free: int, total: int) -> None:
    """Give a snapshot other sizes (bytes), and what vLLM derives from them."""
    snapshot.free_memory, snapshot.total_memory = free, total
    snapshot.cuda_memory = total - free
    snapshot.non_torch_memory = snapshot.cuda_memory - snapshot.torch_memory


def index_of(device: Any) -> int:
    """Torch index of a device of type xpu."""
    import torch

    return torch.xpu.current_device() if device.index is None else device.index


def _fill(snapshot: Any, index: int) -> None:
    """What vLLM's measuring sets besides the reading it failed at."""
    import torch

    stats = torch.xpu.memory_stats(index)
    snapshot.torch_peak = stats.get("allocated_bytes.all.peak", 0)
    if hasattr(snapshot, "torch_allocated"):
        snapshot.torch_allocated = stats.get("allocated_bytes.all.current", 0)
    snapshot.torch_memory = torch.xpu.memory_reserved(index)
    snapshot.timestamp = time.time()
