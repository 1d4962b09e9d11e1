"""The arithmetic of AVG and PREMUL_SUM when the collective itself only sums."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable


class When(Enum):
    """When a buffer is scaled."""

    #: In place, before the collective, which then overwrites the buffer anyway. The native Work is all a caller needs.
    BEFORE = "before"
    #: The collective gets a scaled copy of the caller's input.
    COPY = "copy"
    #: The result is scaled once the collective is done.
    AFTER = "after"


class Scale(NamedTuple):
    """A division by `factor` (a number of ranks) or a multiplication by it (a number or a 0-d tensor)."""

    factor: float | torch.Tensor
    divide: bool

    def scale_(self, tensor: torch.Tensor) -> None:
        """Scale in place; integers are divided truncating towards zero.

        The change is hidden from autograd, as the collective's own change of the buffer is.
        """
        # inference_mode: the only mode in which both ordinary and inference tensors may be changed. `.data`: its
        # version counter is its own, so a tensor saved for backward is not declared stale.
        with torch.inference_mode():
            data = tensor.data
            if not self.divide:
                data.mul_(self.factor)
            elif is_integer(tensor):
                data.div_(self.factor, rounding_mode="trunc")
            else:
                data.div_(self.factor)

    def scaled(self, tensor: torch.Tensor) -> torch.Tensor:
        """A scaled copy of a floating point or complex tensor, same shape, dtype and strides."""
        with torch.no_grad():
            data = tensor.detach()
            return data / self.factor if self.divide else (data * self.factor).to(data.dtype)

    def unscale_(self, tensor: torch.Tensor) -> None:
        """Undo `scale_` of an average after a collective that raised, up to rounding."""
        if self.divide:
            with torch.inference_mode():
                tensor.data.mul_(self.factor)


def average(ranks: int) -> Scale:
    """The scale of AVG over `ranks` ranks."""
    return Scale(ranks, divide=True)


def premultiplied(op: object) -> Scale:
    """The scale of a PREMUL_SUM operation (a `torch.distributed.ReduceOp`)."""
    # The pickled state is the only way to the factor that torch 2.11 and 2.12 have; 2.13 added `op.factor`.
    return Scale(op.__getstate__()[1], divide=False)  # type: ignore[attr-defined, misc]


def is_integer(tensor: torch.Tensor) -> bool:
    """Whether the dtype is an integer one (bool counts)."""
    return not (tensor.is_floating_point() or tensor.is_complex())


def choose(scale: Scale, tensors: Iterable[torch.Tensor], in_place: bool) -> When:
    """When to scale a reduction of `tensors`.

    torch documents AVG as dividing before the sum, and NCCL and oneCCL do it so for floating point: a float16 sum may
    overflow where its average does not. Where the input is the caller's to keep, a division afterwards saves the
    copy for the dtypes that have range to spare. Integers are summed, then divided. The factor of a PREMUL_SUM is each
    rank's own, so it has to go in before.

    All ranks of a collective must come to the same answer (up to BEFORE on one being COPY on another).

    Args:
        scale: what to do.
        tensors: the inputs of the collective.
        in_place: whether the collective overwrites its input on every rank.

    Raises:
        TypeError: for dtypes that cannot be scaled: bool, 8-bit floats, and integers multiplied by a number.
    """
    answer = When.BEFORE if in_place else When.AFTER if scale.divide else When.COPY
    for tensor in tensors:
        dtype = tensor.dtype
        integer = is_integer(tensor)
        if dtype == torch.bool or (integer and not scale.divide) or (not integer and dtype.itemsize == 1):
            name = "AVG" if scale.divide else "PREMUL_SUM"
            raise TypeError(
                f"ReduceOp.{name} is not defined for {dtype} tensors on xpu; convert to "
                f"{'a wider floating point dtype' if not integer else 'a floating point dtype'} first"
            )
        if integer:
            return When.AFTER
        if dtype == torch.float16 and not in_place:
            answer = When.COPY
    return answer
