"""The reducing methods of `torch.distributed.ProcessGroup`, for xpu tensors.

SUM and everything on other devices goes straight on, with the arguments and the Work untouched.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._C._distributed_c10d import ReduceOp

from xpu_shim.collectives import cpu_half, requests, scaling, selftest
from xpu_shim.collectives.requests import Form, Request
from xpu_shim.collectives.scaling import Scale, When
from xpu_shim.collectives.works import FinishingWork
from xpu_shim.doctor.explain import explain

if TYPE_CHECKING:
    from collections.abc import Callable


class Step(NamedTuple):
    """What has to happen to the result of a collective, once it is done."""

    run: Callable[[], object]
    device: torch.device


#: Operations that are checked before they are trusted.
CHECKED = {"MIN": ReduceOp.MIN, "MAX": ReduceOp.MAX, "PRODUCT": ReduceOp.PRODUCT}


class Block:
    """What a coalescing block leaves to do at its end, where its collectives are run."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        #: Questions that could not be asked inside; asked by all ranks as soon as the block is over.
        self.checks: list[Callable[[], object]] = []


#: Groups between `_start_coalescing` and `_end_coalescing`.
_coalescing: weakref.WeakKeyDictionary[Any, Block] = weakref.WeakKeyDictionary()


def reduction(form: Form, averages: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A maker of the replacement of one method.

    Args:
        form: the method.
        averages: whether AVG and PREMUL_SUM become SUM; otherwise they go on as they are.
    """
    arity, plain = form.arity, ReduceOp.SUM
    options: Any = form.options
    # Both are bound here because a property and an operator cost twice as much as the functions behind them.
    operation, equal = options.reduceOp.fget, ReduceOp.__eq__

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def replacement(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                # The way of nearly every call; the operation comes first because most of them are sums.
                if (
                    len(args) == arity
                    and not kwargs
                    and type(args[-1]) is options
                    and equal(operation(args[-1]), plain)
                ):
                    return original(self, *args)
                return other(self, args, kwargs)
            except Exception as error:
                explain(error)
                raise

        def other(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if args and _elsewhere(args[0]):
                return original(self, *args, **kwargs)
            request = requests.read(form, args, kwargs)
            if request is None or not _on_xpu(request):
                return original(self, *args, **kwargs)
            op = request.opts.reduceOp
            if averages and op == ReduceOp.AVG:
                return reduce_scaled(request, original, self, scaling.average(self.size()))
            if averages and op == ReduceOp.PREMUL_SUM:
                return reduce_scaled(request, original, self, scaling.premultiplied(op))
            for name, checked in CHECKED.items():
                if op == checked:
                    return reduce_checked(request, original, self, name)
            return original(self, *args, **kwargs)

        return replacement

    return make


def _elsewhere(buffers: Any) -> bool:
    """Whether the first tensor of a call's first argument is on another device; False where that is not seen at once."""
    while type(buffers) is list and buffers:
        buffers = buffers[0]
    return isinstance(buffers, torch.Tensor) and buffers.device.type != "xpu"


def _on_xpu(request: Request) -> bool:
    return any(tensor.device.type == "xpu" for tensor in requests.flat(request.buffers))


def reduce_scaled(request: Request, original: Callable[..., Any], group: Any, scale: Scale) -> Any:
    """Run an average, or a sum of scaled inputs, as a SUM.

    Args:
        request: the call.
        original: the method itself.
        group: its process group.
        scale: what is done to the inputs or, equally, to the sum.

    Returns:
        The collective's own Work wherever the inputs were scaled, else one that scales the result; or None where the
        backend gave none (it has synchronised already).

    Raises:
        TypeError: for dtypes that have no average.
    """
    # A rank of a `reduce` that is not the root keeps its tensor.
    overwritten = request.form.in_place and request.receives(group)
    when = scaling.choose(scale, request.inputs, in_place=request.form.in_place and request.form.method != "reduce")
    if when is When.BEFORE or (when is When.COPY and overwritten):
        tensors = request.inputs
        for tensor in tensors:
            scale.scale_(tensor)
        try:
            return request.run(original, group, ReduceOp.SUM)
        except Exception:
            for tensor in tensors:
                scale.unscale_(tensor)
            raise
    if when is When.COPY:
        scaled = requests.mapped(request.buffers[-1], scale.scaled)
        return request.run(original, group, ReduceOp.SUM, *request.buffers[:-1], scaled)
    work = request.run(original, group, ReduceOp.SUM)
    if not request.receives(group):
        return work
    outputs = request.outputs

    def finish() -> None:
        for output in outputs:
            scale.scale_(output)

    return _finishing(group, work, outputs, Step(finish, outputs[0].device))


def reduce_checked(request: Request, original: Callable[..., Any], group: Any, op: str) -> Any:
    """Run MIN, MAX or PRODUCT: natively if this group computes it rightly on xpu, else on CPU copies.

    Args:
        request: the call.
        original: the method itself.
        group: its process group.
        op: "MIN", "MAX" or "PRODUCT".

    Returns:
        The Work, or None where the backend gave none.

    Raises:
        NoCpuHalfError: if it is wrong on xpu and the group has no CPU backend.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    asked = request.opts.reduceOp
    inputs = request.inputs
    if not inputs or any(isinstance(tensor, FakeTensor) for tensor in inputs):
        return request.run(original, group, asked)

    def wrong() -> bool:
        method, device = request.form.method, inputs[0].device
        verdict = selftest.known(group, method, op)
        if verdict is None:
            attempt = functools.partial(_attempt, request.form, original, group, CHECKED[op])
            verdict = selftest.check(group, method, op, device, attempt, functools.partial(add_up, group))
        if not any(selftest.affected(verdict, tensor.dtype) for tensor in inputs):
            return False
        cpu_half.require(group, f"{method} with ReduceOp.{op}")
        return True

    block = _coalescing.get(group)
    if block is not None and selftest.known(group, request.form.method, op) is None:
        # Nothing started inside a block runs before its end, so there is no asking now. gloo is right either way.
        if cpu_half.available(group):
            return _through_cpu(request, original, group)
        block.checks.append(wrong)
        return request.run(original, group, asked)
    return _through_cpu(request, original, group) if wrong() else request.run(original, group, asked)


def _attempt(form: Form, original: Callable[..., Any], group: Any, op: Any, tensor: torch.Tensor) -> Any:
    """Reduce a tensor of shape (2,) by a method, whatever its layout; None on ranks that get no result."""
    ranks = group.size()
    output = tensor if form.in_place else torch.empty_like(tensor)
    buffers: tuple[Any, ...] = {
        "in_place": lambda: ([tensor],),
        "nested": lambda: ([output], [[tensor] * ranks]),
        "single": lambda: (output, tensor.repeat(ranks)),
        "flat": lambda: ([output], [tensor.repeat(ranks)]),
    }[form.layout]()
    request = Request(form, buffers, form.options())
    work = request.run(original, group, op)
    if work is not None:
        work.wait()
    return output if request.receives(group) else None


def add_up(group: Any, flags: torch.Tensor) -> None:
    """Sum a tensor over the ranks of a group, in place, and wait for it."""
    options = requests.FORMS[0].options()
    options.reduceOp = ReduceOp.SUM
    work = group.allreduce([flags], options)
    if work is not None:
        work.wait()


def _through_cpu(request: Request, original: Callable[..., Any], group: Any) -> Any:
    copies = requests.mapped(request.buffers[-1], cpu_half.copy_to)
    targets = (
        copies
        if request.form.in_place
        else requests.mapped(request.buffers[0], lambda tensor: cpu_half.copy_to(torch.empty_like(tensor)))
    )
    buffers = (copies,) if request.form.in_place else (targets, copies)
    work = request.run(original, group, request.opts.reduceOp, *buffers)
    outputs = request.outputs
    receives = request.receives(group)

    def finish() -> None:
        if receives:
            for output, result in zip(outputs, requests.flat(targets), strict=True):
                cpu_half.copy_back(output, result)

    if group in _coalescing and work is not None:
        # The block is the device's: it neither delays this collective nor waits for it.
        waiting = work

        def wait_and_finish() -> None:
            waiting.wait()
            finish()

        _coalescing[group].steps.append(Step(wait_and_finish, outputs[0].device))
        return work
    return _finishing(group, work, outputs, Step(finish, outputs[0].device))


def _finishing(group: Any, work: Any, outputs: list[torch.Tensor] | None, step: Step) -> Any:
    """Attach a step to a collective: to its Work, to the end of its coalescing block, or now if it is done."""
    block = _coalescing.get(group)
    if block is not None:
        block.steps.append(step)
        return work
    if work is None:
        step.run()
        return None
    return FinishingWork(work, outputs, step.run, step.device)


def start_coalescing(original: Callable[..., Any]) -> Callable[..., Any]:
    """The replacement of `ProcessGroup._start_coalescing`: collectives until the end run together, at the end."""

    def replacement(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        _coalescing[self] = Block()
        return result

    return replacement


def end_coalescing(original: Callable[..., Any]) -> Callable[..., Any]:
    """The replacement of `ProcessGroup._end_coalescing`: its Work also takes the steps left over from the block."""

    def replacement(self: Any, *args: Any, **kwargs: Any) -> Any:
        block = _coalescing.pop(self, None)
        work = original(self, *args, **kwargs)
        if block is None:
            return work
        for check in block.checks:
            check()  # raises, on every rank alike, if what the block computed is wrong
        steps = block.steps
        if not steps:
            return work

        def finish() -> None:
            for step in steps:
                step.run()

        return _finishing(self, work, None, Step(finish, steps[0].device))

    return replacement
