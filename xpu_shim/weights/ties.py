"""Tied weights: the same memory yielded under a second name need not travel again.

Address and shape are not enough to call two tensors the same: whoever yields weights may refill one buffer for all of them,
and not every write shows in torch's version counter. So the contents are compared too, by sums over the whole tensor taken
on its own device. That costs one reading of it, which pays only for large tensors; an embedding is one.

Weights gathered afresh under each name, as sharded training does, are different memory and are sent twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

#: Smaller tensors are sent again rather than compared, in bytes.
SMALLEST = 32 << 20

#: Sums over every LANES-th 8-byte word. Prime, so that no exchange of rows or blocks keeps them.
LANES = 509


@dataclass
class _Seen:
    index: int
    reference: Any
    geometry: tuple
    sums: torch.Tensor


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
        # A window into a larger buffer is never a weight with two names.
        if tensor.nbytes < SMALLEST or tensor.untyped_storage().nbytes() != tensor.nbytes:
            return None
        from torch.multiprocessing.reductions import StorageWeakRef

        reference = StorageWeakRef(tensor.untyped_storage())
        geometry = (tensor.dtype, tuple(tensor.shape), tensor.stride())
        sums = fingerprint(tensor)
        earlier = self._seen.get(reference.cdata)
        # If the storage is alive, nothing else can have its address.
        if (
            earlier is not None
            and not earlier.reference.expired()
            and earlier.geometry == geometry
            and torch.equal(earlier.sums, sums)
        ):
            return earlier.index
        self._seen[reference.cdata] = _Seen(index, reference, geometry, sums)
        return None


def fingerprint(tensor: torch.Tensor) -> torch.Tensor:
    """Sums over all bytes of the tensor's storage, int64 of shape (LANES + rest,) on the host, in memory of their own."""
    memory = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    row = 8 * LANES
    whole = memory.numel() // row * row
    sums = memory[:whole].view(torch.int64).view(-1, LANES).sum(0).cpu()
    return torch.cat([sums, memory[whole:].to("cpu", torch.int64)])
