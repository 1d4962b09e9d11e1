"""Tied weights: the same memory yielded under a second name need not travel again.

"The same" is decided without reading the whole tensor, so every sign has to agree: the storage is still alive (nothing
else can have its address), the tensor is all of it (no window into a buffer that is refilled), shape, strides and version
counter are equal, and so are samples of its bytes. Weights gathered afresh under each name, as sharded training does, are
different memory and are sent twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

#: Smaller tensors are not worth the look.
SMALLEST = 64 << 10

#: Bytes compared.
SAMPLES = 1024


@dataclass
class _Seen:
    index: int
    reference: Any
    geometry: tuple
    samples: torch.Tensor


class Ties:
    """Those of one sync."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def find(self, index: int, tensor: torch.Tensor) -> int | None:
        """The number of an earlier tensor with the same memory and contents, or None; remembers this one.

        Args:
            index: this tensor's number in the sync.
            tensor: from `tensors.prepare`.
        """
        if tensor.nbytes < SMALLEST or tensor.untyped_storage().nbytes() != tensor.nbytes:
            return None
        from torch.multiprocessing.reductions import StorageWeakRef

        storage = tensor.untyped_storage()
        version = 0 if tensor.is_inference() else tensor._version
        geometry = (tensor.dtype, tuple(tensor.shape), tensor.stride(), version)
        samples = _samples(tensor)
        reference = StorageWeakRef(storage)
        earlier = self._seen.get(reference.cdata)
        if (
            earlier is not None
            and not earlier.reference.expired()
            and earlier.geometry == geometry
            and torch.equal(earlier.samples, samples)
        ):
            return earlier.index
        self._seen[reference.cdata] = _Seen(index, reference, geometry, samples)
        return None


def _samples(tensor: torch.Tensor) -> torch.Tensor:
    """`SAMPLES` evenly spread bytes of the storage, on the host."""
    memory = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    step = max(1, memory.numel() // SAMPLES)
    # An odd step visits every byte position of the elements, not only the lowest bytes.
    return memory[:: step | 1].cpu()
