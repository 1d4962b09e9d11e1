"""The way round for an operation that the stack gets wrong on xpu: the same collective on CPU copies, through gloo."""

from __future__ import annotations

import torch

#: dtypes gloo does not reduce, and the one that holds their values.
_WIDER = {torch.int16: torch.int32}


class NoCpuHalfError(RuntimeError):
    """An operation is wrong on xpu and the process group has no CPU backend to compute it with."""


def available(group: object) -> bool:
    """Whether this process group can reduce CPU tensors."""
    return any(device.type == "cpu" for device in getattr(group, "_device_types", ()))


def require(group: object, what: str) -> None:
    """Make sure of the CPU half.

    Args:
        group: the process group.
        what: the operation, for the message ("allreduce with ReduceOp.MAX").

    Raises:
        NoCpuHalfError: if there is none.
    """
    if not available(group):
        name = getattr(group, "group_name", None) or "(unnamed)"
        raise NoCpuHalfError(
            f"{what} gives wrong results on xpu with this oneCCL, and process group {name} has no CPU backend to "
            'compute it with. Create the group for both devices: init_process_group("cpu:gloo,xpu:xccl"), or '
            'new_group(..., backend="cpu:gloo,xpu:xccl"); or move the tensor to the CPU before the call.'
        )


def copy_to(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous CPU copy that gloo can reduce. Waits for the device."""
    return tensor.detach().to("cpu", _WIDER.get(tensor.dtype, tensor.dtype)).contiguous()


def copy_back(tensor: torch.Tensor, result: torch.Tensor) -> None:
    """Put a result where the caller expects it; hidden from autograd, as a collective's own write is."""
    with torch.inference_mode():
        tensor.data.copy_(result)
