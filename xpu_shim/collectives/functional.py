"""The `_c10d_functional` kernels for xpu tensors: functional collectives, DTensor and compiled code.

They call the process group in C++, past every Python method, so the dispatcher is where they can be met. A result is
waited for with `wait_tensor`, which runs every Work registered for it in order; a step after the collective is one
more of those, so nothing here waits for an average.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _distributed_c10d as c10d

from xpu_shim.collectives import cpu_half, scaling, selftest
from xpu_shim.collectives.process_group import CHECKED, add_up
from xpu_shim.collectives.scaling import Scale, When
from xpu_shim.doctor.explain import explain

if TYPE_CHECKING:
    from collections.abc import Callable

NAMESPACE = "_c10d_functional"
KEY = "XPU"

Tensor = torch.Tensor


def install(averages: bool) -> Callable[[], None]:
    """Put our kernels in front of torch's.

    Args:
        averages: whether "avg" becomes "sum".

    Returns:
        What takes them away again.
    """
    ours = {**_all_reduce(averages), **_reduce_scatter(averages)}
    library = torch.library.Library(NAMESPACE, "IMPL")
    for name, kernel in ours.items():
        library.impl(name, _explained(kernel), KEY, with_keyset=True)
    return library._destroy


def _explained(kernel: Callable[..., Any]) -> Callable[..., Any]:
    def explained(*args: Any, **kwargs: Any) -> Any:
        try:
            return kernel(*args, **kwargs)
        except Exception as error:
            explain(error)
            raise

    return explained


def _native(name: str) -> Callable[..., Any]:
    """The kernel in place now. Its first argument is the dispatch key set."""
    return torch.library.get_kernel(f"{NAMESPACE}::{name}", KEY).call_boxed


_MEMBERS: Any = c10d.ReduceOp.RedOpType
#: Operations by their number in C++.
_NAMES: dict[int, str] = {int(value): name.lower() for name, value in _MEMBERS.__members__.items()}


def operation(reduce_op: Any) -> str:
    """The name of an operation in lower case, whatever torch passes it as.

    A string up to torch 2.14; since 2.15 also a ReduceOp, which a kernel may see as the object or boxed.
    """
    if isinstance(reduce_op, str):
        return reduce_op.lower()
    boxed: Any = reduce_op
    value = boxed.op() if isinstance(reduce_op, torch.ScriptObject) else getattr(reduce_op, "op", reduce_op)
    return _NAMES.get(int(value), "")


def _passes(reduce_op: Any, averages: bool) -> bool:
    """Whether an operation is none of ours."""
    if type(reduce_op) is str and reduce_op == "sum":
        return True
    name = operation(reduce_op)
    if name == "premul_sum":
        return not averages or isinstance(reduce_op, torch.ScriptObject)  # whose factor cannot be read
    return not averages if name == "avg" else name.upper() not in CHECKED


def _scale(reduce_op: Any, group: Any) -> Scale | None:
    """How an average or a sum of scaled inputs is made of a sum; None for other operations."""
    name = operation(reduce_op)
    if name == "avg":
        return scaling.average(group.size())
    return scaling.premultiplied(reduce_op) if name == "premul_sum" else None


def _all_reduce(averages: bool) -> dict[str, Callable[..., Any]]:
    """The kernels that reduce without scattering."""
    native, native_ = _native("all_reduce"), _native("all_reduce_")
    native_many, native_many_ = _native("all_reduce_coalesced"), _native("all_reduce_coalesced_")

    # torch's own out-of-place kernels are a clone and the in-place kernel, too.

    def all_reduce(keys: Any, input: Tensor, reduce_op: Any, group_name: Any) -> Tensor:
        if _passes(reduce_op, averages):
            return native(keys, input, reduce_op, group_name)
        return all_reduce_(keys, _clone(input), reduce_op, group_name)

    def all_reduce_(keys: Any, input: Tensor, reduce_op: Any, group_name: Any) -> Tensor:
        if _passes(reduce_op, averages):
            return native_(keys, input, reduce_op, group_name)
        run = lambda tensors, op: native_(keys, tensors[0], op, group_name)  # noqa: E731
        reduce_in_place([input], reduce_op, group_name, "functional all_reduce", run)
        return input

    def all_reduce_coalesced(keys: Any, inputs: list[Tensor], reduce_op: Any, group_name: Any) -> list[Tensor]:
        if _passes(reduce_op, averages):
            return native_many(keys, inputs, reduce_op, group_name)
        return all_reduce_coalesced_(keys, [_clone(tensor) for tensor in inputs], reduce_op, group_name)

    def all_reduce_coalesced_(keys: Any, inputs: list[Tensor], reduce_op: Any, group_name: Any) -> list[Tensor]:
        if _passes(reduce_op, averages):
            return native_many_(keys, inputs, reduce_op, group_name)
        run = lambda tensors, op: native_many_(keys, tensors, op, group_name)  # noqa: E731
        reduce_in_place(inputs, reduce_op, group_name, "functional all_reduce_coalesced", run)
        return inputs

    return {
        "all_reduce": all_reduce,
        "all_reduce_": all_reduce_,
        "all_reduce_coalesced": all_reduce_coalesced,
        "all_reduce_coalesced_": all_reduce_coalesced_,
    }


def reduce_in_place(
    tensors: list[Tensor], op: Any, group_name: Any, method: str, run: Callable[[list[Tensor], Any], object]
) -> None:
    """All-reduce tensors by an operation that needs care; to be waited for.

    Args:
        tensors: inputs and outputs.
        op: one that `_passes` does not pass.
        group_name: the process group, or its name.
        method: what to call it in verdicts and messages.
        run: the native in-place kernel on (tensors, operation).
    """
    group = _group(group_name)
    scale = _scale(op, group)
    if scale is not None:
        if scaling.choose(scale, tensors, in_place=True) is When.BEFORE:
            for tensor in tensors:
                scale.scale_(tensor)
            run(tensors, "sum")
        else:
            run(tensors, "sum")
            _scale_when_done(tensors, scale)
        return

    def attempt(tensor: Tensor) -> Tensor:
        run([tensor], op)
        return torch.ops._c10d_functional.wait_tensor(tensor)

    if _wrong(group, method, op, tensors, attempt):
        copies = [cpu_half.copy_to(tensor) for tensor in tensors]
        for copy in copies:
            torch.ops._c10d_functional.all_reduce_(copy, op, group_name)
        _copy_back_when_done(tensors, copies)
    else:
        run(tensors, op)


def _reduce_scatter(averages: bool) -> dict[str, Callable[..., Any]]:
    """The kernels that reduce and scatter."""
    single, single_out = _native("reduce_scatter_tensor"), _native("reduce_scatter_tensor_out")
    many = _native("reduce_scatter_tensor_coalesced")

    def reduce_scatter_tensor(keys: Any, input: Tensor, reduce_op: Any, group_size: int, group_name: Any) -> Tensor:
        if _passes(reduce_op, averages):
            return single(keys, input, reduce_op, group_size, group_name)

        def run(tensors: list[Tensor], op: Any) -> list[Tensor]:
            return [single(keys, tensors[0], op, group_size, group_name)]

        return reduce_and_scatter([input], reduce_op, group_name, "functional reduce_scatter", run, run)[0]

    def reduce_scatter_tensor_out(
        keys: Any, input: Tensor, reduce_op: Any, group_size: int, group_name: Any, *, out: Tensor
    ) -> Tensor:
        if _passes(reduce_op, averages):
            return single_out(keys, input, reduce_op, group_size, group_name, out=out)

        def run(tensors: list[Tensor], op: Any) -> list[Tensor]:
            return [single_out(keys, tensors[0], op, group_size, group_name, out=out)]

        def try_out(tensors: list[Tensor], op: Any) -> list[Tensor]:
            return [single_out(keys, tensors[0], op, group_size, group_name, out=tensors[0].new_empty(2))]

        reduce_and_scatter([input], reduce_op, group_name, "functional reduce_scatter_out", run, try_out, [out])
        return out

    def reduce_scatter_tensor_coalesced(
        keys: Any, inputs: list[Tensor], reduce_op: Any, group_size: int, group_name: Any
    ) -> list[Tensor]:
        if _passes(reduce_op, averages):
            return many(keys, inputs, reduce_op, group_size, group_name)

        def run(tensors: list[Tensor], op: Any) -> list[Tensor]:
            return list(many(keys, tensors, op, group_size, group_name))

        return reduce_and_scatter(inputs, reduce_op, group_name, "functional reduce_scatter_coalesced", run, run)

    return {
        "reduce_scatter_tensor": reduce_scatter_tensor,
        "reduce_scatter_tensor_out": reduce_scatter_tensor_out,
        "reduce_scatter_tensor_coalesced": reduce_scatter_tensor_coalesced,
    }


def reduce_and_scatter(
    inputs: list[Tensor],
    op: Any,
    group_name: Any,
    method: str,
    run: Callable[[list[Tensor], Any], list[Tensor]],
    try_out: Callable[[list[Tensor], Any], list[Tensor]],
    outputs: list[Tensor] | None = None,
) -> list[Tensor]:
    """Reduce-scatter tensors along dimension 0 by an operation that needs care; the results are to be waited for.

    Args:
        inputs: of shape (ranks * n, ...) each; kept as they are.
        op: one that `_passes` does not pass.
        group_name: the process group, or its name.
        method: what to call it in verdicts and messages.
        run: the native kernel on (tensors, operation).
        try_out: the same, without touching the caller's tensors.
        outputs: where the results have to be, if the caller brought tensors for them.

    Returns:
        The results, of shape (n, ...) each.
    """
    group = _group(group_name)
    ranks = group.size()
    scale = _scale(op, group)
    if scale is not None:
        if scaling.choose(scale, inputs, in_place=False) is When.COPY:
            return run([scale.scaled(tensor) for tensor in inputs], "sum")
        results = run(inputs, "sum")
        _scale_when_done(results, scale)
        return results

    def attempt(tensor: Tensor) -> Tensor:
        return torch.ops._c10d_functional.wait_tensor(try_out([tensor.repeat(ranks)], op)[0])

    if not _wrong(group, method, op, inputs, attempt):
        return run(inputs, op)
    results = [
        torch.ops._c10d_functional.reduce_scatter_tensor(cpu_half.copy_to(tensor), op, ranks, group_name)
        for tensor in inputs
    ]
    if outputs is None:
        outputs = [tensor.new_empty(result.shape) for tensor, result in zip(inputs, results, strict=True)]
    _copy_back_when_done(outputs, results)
    return outputs


def _group(group_name: Any) -> Any:
    """The process group of an operator call, which torch names by string or, since 2.13, passes as it is."""
    resolve: Any = c10d._resolve_process_group
    return resolve(group_name) if isinstance(group_name, str) else group_name


def _clone(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _scale_when_done(tensors: list[Tensor], scale: Scale) -> None:
    for tensor in tensors:
        _when_done(tensor, functools.partial(scale.scale_, tensor))


def _copy_back_when_done(outputs: list[Tensor], results: list[Tensor]) -> None:
    for output, result in zip(outputs, results, strict=True):

        def step(output: Tensor = output, result: Tensor = result) -> None:
            cpu_half.copy_back(output, torch.ops._c10d_functional.wait_tensor(result))

        _when_done(output, step)


def _when_done(tensor: Tensor, step: Callable[[], object]) -> None:
    """Run a step when `tensor` is waited for, after the Works registered for it so far."""

    def callback(timeout: object) -> bool:
        step()
        return True

    c10d._register_work(tensor, c10d.PythonCallbackWork(callback))


def _wrong(group: Any, method: str, op: Any, inputs: list[Tensor], attempt: Callable[[Tensor], Tensor]) -> bool:
    """Whether an operation has to go round through the CPU.

    Raises:
        NoCpuHalfError: if it has to and the group has no CPU backend.
    """
    if not inputs:
        return False
    name = operation(op).upper()
    verdict = selftest.known(group, method, name)
    if verdict is None:
        verdict = selftest.check(group, method, name, inputs[0].device, attempt, lambda flags: add_up(group, flags))
    if not any(selftest.affected(verdict, tensor.dtype) for tensor in inputs):
        return False
    cpu_half.require(group, f"{method} with ReduceOp.{name}")
    return True
