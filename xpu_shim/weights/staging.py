"""Copies between a device and shared memory.

Shared memory is ordinary pageable memory to the device, which reaches it only through a driver's bounce buffer. Where
torch offers pinned host memory, the bytes take two steps instead, device to pinned and pinned to shared memory, in chunks
that overlap: while the processor copies one chunk the device copies the next.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

from xpu_shim.core.log import logger
from xpu_shim.weights import tensors

_log = logger("xpu_shim.weights")

#: Bytes of each of the two pinned buffers.
CHUNK = 4 << 20


class Staging:
    """Copies for one device in one thread.

    Args:
        device: the device, with an index unless it has none.
        pinned: "auto", "0" or "1" (see `settings.PINNED`).
    """

    def __init__(self, device: torch.device, pinned: str) -> None:
        self.device = device
        self._pinned = _pinned_buffers(device, pinned)

    def to_host(self, source: torch.Tensor, destination: torch.Tensor) -> None:
        """Copy flat uint8 from the device to host memory, in the order of the current stream; done on return."""
        if self._pinned is None or source.device.type == "cpu" or source.numel() < CHUNK // 4:
            tensors.copy(source, destination)
            return
        waiting: tuple[Any, torch.Tensor, torch.Tensor] | None = None
        for index, start in enumerate(range(0, source.numel(), CHUNK)):
            part = source[start : start + CHUNK]
            buffer = self._pinned[index % 2][: part.numel()]
            buffer.copy_(part, non_blocking=True)
            event = self._event()
            if waiting is not None:
                _finish(waiting)
            waiting = (event, destination[start : start + CHUNK], buffer)
        if waiting is not None:
            _finish(waiting)

    def to_device(self, source: torch.Tensor, destination: torch.Tensor) -> None:
        """Copy flat uint8 from host memory to the device; done on return, `source` may be overwritten."""
        if self._pinned is None or destination.device.type == "cpu" or source.numel() < CHUNK // 4:
            tensors.copy(source, destination)
            return
        busy: list[Any] = [None, None]
        for index, start in enumerate(range(0, source.numel(), CHUNK)):
            part = source[start : start + CHUNK]
            if busy[index % 2] is not None:
                busy[index % 2].synchronize()
            buffer = self._pinned[index % 2][: part.numel()]
            tensors.copy(part, buffer)
            destination[start : start + part.numel()].copy_(buffer, non_blocking=True)
            busy[index % 2] = self._event()
        for event in busy:
            if event is not None:
                event.synchronize()

    def _event(self) -> Any:
        module = torch.get_device_module(self.device.type)
        event = module.Event()
        event.record(module.current_stream(self.device))
        return event


def _finish(waiting: tuple[Any, torch.Tensor, torch.Tensor]) -> None:
    event, destination, buffer = waiting
    event.synchronize()
    tensors.copy(buffer, destination)


def _pinned_buffers(device: torch.device, pinned: str) -> list[torch.Tensor] | None:
    """Two pinned buffers, which torch's host allocator keeps for the next sync; None where copies go directly."""
    if device.type == "cpu" or pinned == "0":
        return None
    try:
        return [torch.empty(CHUNK, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    except (RuntimeError, AssertionError) as error:
        level = logging.WARNING if pinned == "1" else logging.INFO
        _log.log(level, "weight sync: no pinned memory for %s (%s); copying without it", device.type, error)
        return None
