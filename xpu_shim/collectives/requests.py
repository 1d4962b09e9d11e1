"""Reads a call of a reducing `ProcessGroup` method into one form, whichever of its overloads was used."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _distributed_c10d as c10d

NoneType = type(None)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True)
class Form:
    """One method: how its buffers are nested and what carries the operation."""

    #: The method's name.
    method: str
    #: The options object of its main overload, which is always the last argument there.
    options: type
    #: How the tensors of that overload are laid out: "in_place" (tensors), "nested" (outputs, lists of inputs),
    #: "single" (output, input) or "flat" (outputs, inputs).
    layout: str

    @property
    def in_place(self) -> bool:
        """Whether the method overwrites its input."""
        return self.layout == "in_place"

    @property
    def arity(self) -> int:
        """Number of arguments of the main overload, without self."""
        return 2 if self.in_place else 3


#: Every reducing method of `ProcessGroup` in torch 2.11 to 2.15. The `_single` names are new in 2.13.
FORMS = (
    Form("allreduce", c10d.AllreduceOptions, "in_place"),
    Form("allreduce_coalesced", c10d.AllreduceCoalescedOptions, "in_place"),
    Form("reduce", c10d.ReduceOptions, "in_place"),
    Form("reduce_scatter", c10d.ReduceScatterOptions, "nested"),
    Form("_reduce_scatter_base", c10d.ReduceScatterOptions, "single"),
    Form("reduce_scatter_single", c10d.ReduceScatterOptions, "single"),
    Form("reduce_scatter_tensor_coalesced", c10d.ReduceScatterOptions, "flat"),
    Form("reduce_scatter_single_coalesced", c10d.ReduceScatterOptions, "flat"),
)


@dataclass
class Request:
    """A call in the form of the main overload."""

    form: Form
    #: The tensors as the caller nested them: (tensors,) or (outputs, inputs).
    buffers: tuple[Any, ...]
    opts: Any

    @property
    def outputs(self) -> list[torch.Tensor]:
        """What the collective writes, in the caller's order."""
        return list(flat(self.buffers[0]))

    @property
    def inputs(self) -> list[torch.Tensor]:
        """What it reads."""
        return list(flat(self.buffers[-1]))

    def receives(self, group: Any) -> bool:
        """Whether this rank gets a result: all but the other ranks of a `reduce` do."""
        return self.form.method != "reduce" or group.rank() == self.opts.rootRank

    def run(self, original: Callable[..., Any], group: Any, op: Any, *buffers: Any) -> Any:
        """Call the method itself with another operation, and other buffers if given; returns its Work or None."""
        # A copy, as reading gives a view of the field that the next line changes.
        opts, asked = self.opts, copy.copy(self.opts.reduceOp)
        # The object is the caller's: a copy would have to know the fields of every release, so it is put back instead.
        opts.reduceOp = op
        try:
            return original(group, *(buffers or self.buffers), opts)
        finally:
            opts.reduceOp = asked


def read(form: Form, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Request | None:
    """Read a call.

    Args:
        form: the method.
        args: positional arguments without the group.
        kwargs: keyword arguments.

    Returns:
        The call in one form, or None if it is none that the method has (which then says so itself).
    """
    values = _by_position(form, args, kwargs)
    if values is None:
        return None
    if isinstance(values[-1], form.options):
        return Request(form, tuple(values[:-1]), values[-1])
    return _from_operation(form, values)


#: Keyword names of each position; the overloads and releases differ.
_FIRST: tuple[str, ...] = ("tensors", "tensor", "output_tensors", "output", "outputTensor", "outputs")
_INPUTS: tuple[str, ...] = ("input_tensors", "input", "inputTensor", "inputs")
_OPTIONS: tuple[str, ...] = ("opts", "op")


def _by_position(form: Form, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
    """Arguments in the order of the overload that was meant; None if some are missing or unknown."""
    left = dict(kwargs)
    values = list(args)
    positions = [_FIRST] if form.in_place else [_FIRST, _INPUTS]
    # reduce(tensor, root, op, timeout) is the overload without an options object.
    if form.method == "reduce" and ("root" in left or (len(values) > 1 and isinstance(values[1], int))):
        positions.append(("root",))
    for names in [*positions, _OPTIONS, ("timeout",)][len(values) :]:
        name = next((name for name in names if name in left), None)
        if name is None:
            break
        values.append(left.pop(name))
    return values if not left and len(values) > len(positions) else None


def _from_operation(form: Form, values: list[Any]) -> Request | None:
    """The overload that takes single tensors, an operation and a timeout."""
    count = 1 if form.in_place else 2
    buffers, rest = values[:count], values[count:]
    opts = form.options()
    if form.method == "reduce":
        opts.rootRank = rest.pop(0)
    op, timeout = [*rest, None][:2]
    if not isinstance(op, (c10d.ReduceOp, c10d.ReduceOp.RedOpType)) or not isinstance(timeout, (timedelta, NoneType)):
        return None
    opts.reduceOp = op
    if timeout is not None:
        opts.timeout = timeout
    if isinstance(buffers[0], torch.Tensor) and form.layout in ("in_place", "nested"):
        buffers = [[buffer] for buffer in buffers]
    return Request(form, tuple(buffers), opts)


def flat(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a tensor or in nested sequences of them."""
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for part in value:
            yield from flat(part)


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same nesting with every tensor changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    return [mapped(part, change) for part in value]
