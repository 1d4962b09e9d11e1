"""What FSDP2 divides gradients by, and when, if every collective is a SUM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch._C._distributed_c10d import ReduceOp

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch.distributed import ProcessGroup

    #: Divisor before the collectives, divisor after them, reduce-scatter operation, all-reduce operation.
    Factors = tuple[float | None, float | None, Any, Any]


def summing(original: Callable[..., Factors]) -> Callable[..., Factors]:
    """The replacement of `_get_gradient_divide_factors`; other device types get the original's answer.

    torch has the arithmetic already, for mtia: it is asked for that. The division is one kernel per parameter group
    on the stream of the collective, so overlap is what it was.
    """

    def replacement(
        reduce_scatter_group: ProcessGroup | None,
        all_reduce_group: ProcessGroup | None,
        reduce_dtype: torch.dtype,
        device_type: str = "",
        factor: float | None = None,
        force_sum_reduction_for_comms: bool = False,
    ) -> Factors:
        if device_type != "xpu":
            return original(
                reduce_scatter_group,
                all_reduce_group,
                reduce_dtype,
                device_type,
                factor,
                force_sum_reduction_for_comms,
            )
        if factor is not None and (reduce_scatter_group is None or reduce_scatter_group.size() == 1):
            # Nothing to reduce-scatter (`replicate`, a mesh of (n, 1), one device): the caller copies instead and
            # divides by the factor while it does. Asked for SUM, torch would have it divided a second time.
            return None, None, ReduceOp.SUM, ReduceOp.SUM
        return original(reduce_scatter_group, all_reduce_group, reduce_dtype, device_type, factor, True)

    return replacement


class _Ranks:
    """As much of a process group as the question needs."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def size(self) -> int:
        return self._ranks


def already_sums(original: Callable[..., Factors]) -> bool:
    """Whether torch itself asks for nothing but SUM on xpu: for both legs of HSDP, with and without a factor."""
    import torch

    pairs = [(_Ranks(2), None), (_Ranks(2), _Ranks(2))]
    for groups in pairs:
        for factor in (None, 2.0, 3.0):
            operations = original(*groups, torch.float32, "xpu", factor)[2:]
            # The operation on the left: a plain enum value does not know how to compare itself with a ReduceOp.
            if not all(operation == ReduceOp.SUM for operation in operations):
                return False
    return True
