"""Any dense tensor as a run of bytes in row-major order, and back."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import torch

from xpu_shim.weights.errors import UnsendableTensor

#: Alignment of every tensor in the stream, in bytes; enough for any dtype and for vector loads.
ALIGNMENT = 64

#: From this size in bytes on, finding the addresses for `memmove` is worth it.
_LARGE = 64 << 10

_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def prepare(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` without gradient, lazy conjugation or replication; same shape, dtype and bytes, copied only if lazy.

    Raises:
        UnsendableTensor: if it has no bytes of its own to send; says why and what to do.
    """
    if not isinstance(tensor, torch.Tensor):
        raise UnsendableTensor(f"weight sync: {name!r} is a {type(tensor).__name__}, not a tensor")
    if hasattr(tensor, "placements") and hasattr(tensor, "to_local"):  # DTensor
        if not all(placement.is_replicate() for placement in tensor.placements):
            raise UnsendableTensor(
                f"weight sync: {name!r} is a DTensor with placements {tuple(tensor.placements)}: one rank holds only a "
                "shard of it. Gather it first (tensor.full_tensor() on all ranks)."
            )
        tensor = tensor.to_local()
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise UnsendableTensor(f"weight sync: {name!r} has layout {tensor.layout}; send it dense (tensor.to_dense()).")
    if tensor.device.type == "meta":
        raise UnsendableTensor(f"weight sync: {name!r} is on the meta device and has no data.")
    if tensor.is_quantized:
        raise UnsendableTensor(
            f"weight sync: {name!r} is a quantised tensor ({tensor.dtype}), whose scale lies outside its bytes. Send "
            "tensor.int_repr() and the scale as two tensors, or tensor.dequantize()."
        )
    return tensor.detach().resolve_conj().resolve_neg()


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype as text: "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """The dtype of a `dtype_name`.

    Raises:
        UnsendableTensor: if this process's torch has no such dtype.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise UnsendableTensor(f"weight sync: torch {torch.__version__} here has no dtype {name!r}")
    return dtype


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor as a flat uint8 view of it.

    A tensor of one element counts as contiguous whatever its strides, and torch refuses to view one with a last stride
    other than 1 in another element size; so the strides are stated, not kept.
    """
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def pieces(tensor: torch.Tensor, room: Iterator[int]) -> Iterator[torch.Tensor]:
    """Cut a tensor into consecutive parts of its row-major bytes, without copying the whole.

    Args:
        tensor: from `prepare`, any strides, not empty.
        room: gives, each time it is asked, how many bytes the next part may have; at least the element size.

    Yields:
        Tensors that hold, one after the other, all elements in row-major order. Those of a contiguous tensor are flat
        uint8; the others have a plain integer dtype of the same element size (or the original one at 16 bytes).
    """
    if tensor.is_contiguous():
        flat = flat_bytes(tensor)
        start = 0
        while start < flat.numel():
            part = flat[start : start + next(room)]
            yield part
            start += part.numel()
        return
    # A view of another element size needs a last stride of 1; one of the same size never does.
    same_size = _SAME_SIZE.get(tensor.element_size())
    yield from _strided(tensor.view(same_size) if same_size is not None else tensor, room)


def _strided(tensor: torch.Tensor, room: Iterator[int]) -> Iterator[torch.Tensor]:
    row_bytes = tensor[0].nbytes
    start, end = 0, tensor.shape[0]
    while start < end:
        available = next(room)
        rows = available // row_bytes
        if rows:
            part = tensor[start : start + rows]
            yield part
            start += part.shape[0]
        else:  # not even one row fits (a row of one dimension is one element and always does)
            yield from _strided(tensor[start], room)
            start += 1


def write(part: torch.Tensor, destination: torch.Tensor) -> None:
    """Copy a part from `pieces` to the front of `destination`, flat uint8 memory of the host."""
    target = destination[: part.nbytes]
    if part.dtype is torch.uint8 and part.dim() == 1:
        copy(part, target)
        return
    if part.dtype is not torch.uint8:
        target = target.view(part.dtype)
    target.view(part.shape).copy_(part)


def copy(source: torch.Tensor, destination: torch.Tensor) -> None:
    """Copy flat uint8 memory to flat uint8 memory of the same length, on the host or a device; they must not overlap.

    In one thread the C library's copy is faster than torch's, by a fifth out of the processor's cache and by more within
    it; with several threads torch shares the work among them.
    """
    if (
        source.numel() >= _LARGE
        and source.is_cpu
        and destination.is_cpu
        and torch.get_num_threads() == 1
        and source.is_contiguous()
        and destination.is_contiguous()
    ):
        ctypes.memmove(destination.data_ptr(), source.data_ptr(), source.numel())  # releases the GIL
    else:
        destination.copy_(source)


def view(memory: torch.Tensor, start: int, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    """A tensor over the bytes at `start` of flat uint8 `memory` (any device); `start` is a multiple of `ALIGNMENT`."""
    elements = 1
    for extent in shape:
        elements *= extent
    if not elements:
        return torch.empty(shape, dtype=dtype, device=memory.device)
    return memory[start : start + elements * dtype.itemsize].view(dtype).view(shape)
