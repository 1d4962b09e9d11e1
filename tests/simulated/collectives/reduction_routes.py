"""Every way a reduction takes from user code to a process group, as one function each.

A route takes the rank's context, the kind of device, and a `Case`, and returns the tensors this rank ends up with. Run
on "cpu" it is the reference: gloo, untouched by the patches.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn

if TYPE_CHECKING:
    from context import Context

warnings.filterwarnings("ignore", category=FutureWarning)

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
ALL = (*FLOATS, torch.int64)
#: Where any shape goes; and where the first dimension is scattered.
ANY = ("plain", "scalar", "one", "odd", "strided", "empty")
SCATTERED = ("plain", "empty")


@dataclass
class Case:
    """What to reduce and how."""

    dtype: torch.dtype = torch.float32
    shape: str = "plain"
    op: Any = dist.ReduceOp.AVG
    name: str = "avg"


@dataclass
class Route:
    """One route and the cases it is tried with."""

    run: Callable[[Context, str, Case], list[torch.Tensor]]
    dtypes: tuple[torch.dtype, ...] = ALL
    shapes: tuple[str, ...] = ("plain",)
    #: Operations besides AVG it is tried with.
    compares: bool = False
    #: Needs this many ranks at least.
    ranks: int = 2

    def cases(self) -> list[tuple[torch.dtype, str]]:
        """dtype and shape: every dtype with the first shape, every shape with the first dtype."""
        first = [(dtype, self.shapes[0]) for dtype in self.dtypes]
        return first + [(self.dtypes[0], shape) for shape in self.shapes[1:]]


ROUTES: dict[str, Route] = {}


def route(**options: Any) -> Callable[[Any], Any]:
    """Enter a function in the table under its name."""

    def enter(run: Any) -> Any:
        ROUTES[run.__name__] = Route(run, **options)
        return run

    return enter


# torch.distributed


@route(shapes=ANY, compares=True)
def all_reduce(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    tensor = c.tensor(kind, case.dtype, case.shape)
    dist.all_reduce(tensor, case.op)
    return [tensor]


@route(shapes=ANY, compares=True)
def all_reduce_async(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    tensor = c.tensor(kind, case.dtype, case.shape)
    work = dist.all_reduce(tensor, case.op, async_op=True)
    for _ in range(3 if kind == "xpu" else 1):  # a second wait must not divide again, or undo a division
        work.wait()
    assert work.is_completed()
    return [tensor]


@route(compares=True)
def all_reduce_polled(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    tensor = c.tensor(kind, case.dtype, case.shape)
    work = dist.all_reduce(tensor, case.op, async_op=True)
    while not work.is_completed():
        pass
    return [tensor.clone()]


@route(compares=True)
def all_reduce_future(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    tensor = c.tensor(kind, case.dtype, case.shape)
    work = dist.all_reduce(tensor, case.op, async_op=True)
    seen = work.get_future().then(lambda future: future.value()[0].clone()).wait()
    work.wait()
    return [tensor, seen]


@route(compares=True)
def all_reduce_complex_view(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    if case.dtype != torch.float32 or case.name != "avg":
        return all_reduce(c, kind, case)
    tensor = c.tensor(kind, torch.complex64)
    dist.all_reduce(tensor, case.op)
    return [tensor]


@route(shapes=("plain", "odd", "empty"), compares=True)
def all_reduce_coalesced(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    tensors = [c.tensor(kind, case.dtype, case.shape, seed) for seed in range(3)]
    dist.all_reduce_coalesced(tensors, case.op)
    return tensors


@route(compares=True)
def all_reduce_coalesced_async(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    tensors = [c.tensor(kind, case.dtype, case.shape, seed) for seed in range(3)]
    dist.all_reduce_coalesced(tensors, case.op, async_op=True).wait()
    return tensors


@route(compares=True)
def reduce_to_rank_0(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    tensor = c.tensor(kind, case.dtype, case.shape)
    dist.reduce(tensor, 0, case.op)
    return [tensor] if c.rank == 0 else []


@route(compares=True)
def reduce_async(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    tensor = c.tensor(kind, case.dtype, case.shape)
    work = dist.reduce(tensor, 1, case.op, async_op=True)
    work.wait()
    work.wait()
    return [tensor] if c.rank == 1 else []


@route(shapes=SCATTERED, compares=True)
def reduce_scatter_list(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    inputs = list(c.tensor(kind, case.dtype, case.shape).chunk(c.ranks)) if case.shape == "plain" else None
    inputs = inputs or [c.tensor(kind, case.dtype, case.shape, seed) for seed in range(c.ranks)]
    inputs = [tensor.contiguous() for tensor in inputs]
    kept = [tensor.clone() for tensor in inputs]
    output = torch.empty_like(inputs[0])
    dist.reduce_scatter(output, inputs, case.op)
    assert all(map(torch.equal, inputs, kept))
    return [output]


def _scatter(c: Context, kind: str, case: Case, call: Callable[..., Any]) -> list[torch.Tensor]:
    tensor = c.tensor(kind, case.dtype, case.shape)
    kept = tensor.clone()
    output = tensor.new_empty(tensor.shape[0] // c.ranks, *tensor.shape[1:])
    work = call(output, tensor, case.op)
    if work is not None:
        for _ in range(2 if kind == "xpu" else 1):
            work.wait()
    assert torch.equal(tensor, kept)  # the input is the caller's
    return [output]


@route(shapes=SCATTERED, compares=True)
def reduce_scatter_tensor(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    return _scatter(c, kind, case, dist.reduce_scatter_tensor)


@route(shapes=SCATTERED, compares=True)
def reduce_scatter_single(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    # New in torch 2.13.
    return _scatter(c, kind, case, getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor))


@route(compares=True)
def reduce_scatter_tensor_async(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    return _scatter(c, kind, case, lambda *a: dist.reduce_scatter_tensor(*a, async_op=True))


@route(compares=True)
def reduce_scatter_base(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    return _scatter(c, kind, case, dist._reduce_scatter_base)


def _fresh(c: Context) -> Any:
    # A group of its own: a block that an error left unfinished would spoil the next.
    return dist.new_group(list(range(c.ranks)))


@route(compares=True)
def manager_fast(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    tensors = [c.tensor(kind, case.dtype, case.shape, seed) for seed in range(2)]
    with dist._coalescing_manager(_fresh(c)):
        for tensor in tensors:
            dist.all_reduce(tensor, case.op, group=_coalesced_group())
    return tensors


def _coalesced_group() -> Any:
    return next(iter(dist.distributed_c10d._world.pg_coalesce_state))


def _manager(c: Context, kind: str, **options: Any) -> Any:
    # gloo has no block of its own, so the reference goes without.
    device = c.device(kind) if kind == "xpu" else None
    return dist._coalescing_manager(_fresh(c), device, **options)


@route(compares=True)
def manager_on_device(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    tensors = [c.tensor(kind, case.dtype, case.shape, seed) for seed in range(2)]
    with _manager(c, kind):
        for tensor in tensors:
            dist.all_reduce(tensor, case.op, group=_coalesced_group())
    return tensors


@route(compares=True)
def manager_async(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    tensors = [c.tensor(kind, case.dtype, case.shape, seed) for seed in range(2)]
    with _manager(c, kind, async_ops=True) as block:
        for tensor in tensors:
            dist.all_reduce(tensor, case.op, group=_coalesced_group())
    block.wait()
    block.wait()
    return tensors


def _coalesced_scatter(c: Context, kind: str, case: Case, manager: Any) -> list[torch.Tensor]:
    inputs = [c.tensor(kind, case.dtype, case.shape, seed) for seed in range(2)]
    outputs = [tensor.new_empty(tensor.shape[0] // c.ranks, *tensor.shape[1:]) for tensor in inputs]
    if kind == "cpu":
        for output, tensor in zip(outputs, inputs, strict=True):
            dist.reduce_scatter_tensor(output, tensor, case.op)
        return outputs
    with manager as block:
        for output, tensor in zip(outputs, inputs, strict=True):
            dist.reduce_scatter_tensor(output, tensor, case.op, group=_coalesced_group())
    block.wait()
    return outputs


@route(compares=True)
def manager_scatter(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    return _coalesced_scatter(c, kind, case, dist._coalescing_manager(_fresh(c), async_ops=True))


@route(compares=True)
def manager_scatter_on_device(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    return _coalesced_scatter(c, kind, case, dist._coalescing_manager(_fresh(c), c.device("xpu"), async_ops=True))


@route(shapes=ANY, compares=True)
def subgroup(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    tensor = c.tensor(kind, case.dtype, case.shape)
    dist.all_reduce(tensor, case.op, group=c.half)
    return [tensor]


@route(compares=True)
def group_of_one(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    mine = [dist.new_group([rank]) for rank in range(c.ranks)][c.rank]
    tensor = c.tensor(kind, case.dtype, case.shape)
    if kind == "xpu":
        dist.all_reduce(tensor, case.op, group=mine)
    return [tensor]


# ProcessGroup's own methods, in the overloads torch.distributed does not use


@route(shapes=("plain", "odd"), compares=True)
def method_with_tensor(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    tensor = c.tensor(kind, case.dtype, case.shape)
    c.group.allreduce(tensor, case.op).wait()
    return [tensor]


@route(compares=True)
def method_with_keywords(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    first, second = (c.tensor(kind, case.dtype, case.shape, seed) for seed in range(2))
    options = dist.AllreduceOptions()
    options.reduceOp = case.op
    c.group.allreduce(tensors=[first], opts=options).wait()
    c.group.allreduce([second], op=case.op).wait()
    assert options.reduceOp == case.op  # the caller's object
    return [first, second]


@route(compares=True)
def method_reduce(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    tensor = c.tensor(kind, case.dtype, case.shape)
    c.group.reduce(tensor, 0, case.op).wait()
    return [tensor] if c.rank == 0 else []


@route(compares=True)
def method_reduce_scatter(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    inputs = [tensor.contiguous() for tensor in c.tensor(kind, case.dtype).chunk(c.ranks)]
    output = torch.empty_like(inputs[0])
    c.group.reduce_scatter(output, inputs, case.op).wait()
    return [output]


# Functional collectives


@route(shapes=("plain", "scalar", "one", "odd", "strided", "empty"), compares=True)
def functional_all_reduce(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    tensor = c.tensor(kind, case.dtype, case.shape)
    kept = tensor.clone()
    result = _wait(funcol.all_reduce(tensor, case.name, c.group))
    assert torch.equal(tensor, kept)
    return [result]


def _wait(tensor: torch.Tensor) -> torch.Tensor:
    return funcol.wait_tensor(tensor)


@route(compares=True)
def functional_all_reduce_in_place(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    tensor = c.tensor(kind, case.dtype, case.shape)
    torch.ops._c10d_functional.all_reduce_(tensor, case.name, c.group.group_name)
    _wait(tensor)
    return [_wait(tensor)]


@route(compares=True)
def functional_all_reduce_coalesced(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    tensors = [c.tensor(kind, case.dtype, case.shape, seed) for seed in range(2)]
    return [_wait(tensor) for tensor in funcol.all_reduce_coalesced(tensors, case.name, c.group)]


@route(compares=True)
def functional_all_reduce_coalesced_in_place(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    tensors = [c.tensor(kind, case.dtype, case.shape, seed) for seed in range(2)]
    torch.ops._c10d_functional.all_reduce_coalesced_(tensors, case.name, c.group.group_name)
    return [_wait(tensor) for tensor in tensors]


@route(shapes=SCATTERED, compares=True)
def functional_reduce_scatter(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    tensor = c.tensor(kind, case.dtype, case.shape)
    kept = tensor.clone()
    result = _wait(_functional_scatter(tensor, case.name, 0, c.group))
    assert torch.equal(tensor, kept)
    return [result]


_functional_scatter = getattr(funcol, "reduce_scatter_single", funcol.reduce_scatter_tensor)


@route(compares=True)
def functional_reduce_scatter_dim_1(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    tensor = c.tensor(kind, case.dtype, case.shape).t().contiguous()
    return [_wait(_functional_scatter(tensor, case.name, 1, c.group))]


@route(compares=True)
def functional_reduce_scatter_coalesced(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    tensors = [c.tensor(kind, case.dtype, case.shape, seed) for seed in range(2)]
    scattered = funcol.reduce_scatter_tensor_coalesced(tensors, case.name, [0, 0], c.group)
    return [_wait(tensor) for tensor in scattered]


@route(compares=True)
def functional_reduce_scatter_out(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    tensor = c.tensor(kind, case.dtype, case.shape)
    out = tensor.new_empty(tensor.shape[0] // c.ranks, *tensor.shape[1:])
    torch.ops._c10d_functional.reduce_scatter_tensor_out(tensor, case.name, c.ranks, c.group.group_name, out=out)
    return [_wait(out)]


@route(dtypes=FLOATS)
def functional_autograd(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    tensor = c.tensor(kind, case.dtype, case.shape).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scatter = getattr(funcol, "reduce_scatter_single_autograd", None) or funcol.reduce_scatter_tensor_autograd
        result = scatter(tensor, case.name, 0, c.group)
    result = _wait(result)
    return [result]


@route(compares=True)
def legacy_functional_operator(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    tensor = c.tensor(kind, case.dtype, case.shape)
    ranks = list(range(c.ranks))
    return [_wait(torch.ops.c10d_functional.all_reduce(tensor, case.name, "", ranks, c.ranks))]


# DTensor


def _partial(c: Context, kind: str, case: Case) -> Any:
    from torch.distributed.tensor import DTensor, Partial

    tensor = c.tensor(kind, case.dtype, case.shape)
    return DTensor.from_local(tensor, c.mesh(kind), [Partial(case.name)], run_check=False)


@route(shapes=("plain", "scalar", "odd"), compares=True)
def dtensor_to_replicate(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    from torch.distributed.tensor import Replicate

    return [_partial(c, kind, case).redistribute(placements=[Replicate()]).to_local()]


@route(compares=True)
def dtensor_to_shard(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    from torch.distributed.tensor import Shard

    return [_partial(c, kind, case).redistribute(placements=[Shard(0)]).to_local()]


@route(dtypes=FLOATS)
def dtensor_full_tensor(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    return [_partial(c, kind, case).full_tensor()]


@route(dtypes=FLOATS)
def dtensor_mean(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    from torch.distributed.tensor import DTensor, Shard

    tensor = DTensor.from_local(c.tensor(kind, case.dtype, case.shape), c.mesh(kind), [Shard(0)], run_check=False)
    return [tensor.mean().full_tensor(), tensor.mean(dim=0).full_tensor()]


@route(dtypes=FLOATS)
def dtensor_loss_backward(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    from torch.distributed.tensor import DTensor, Shard

    local = c.tensor(kind, case.dtype, case.shape).requires_grad_()
    tensor = DTensor.from_local(local, c.mesh(kind), [Shard(0)], run_check=False)
    loss = tensor.square().mean().full_tensor()
    loss.backward()
    return [loss, local.grad]


# torch.distributed.nn


@route(dtypes=FLOATS)
def nn_all_reduce(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    tensor = c.tensor(kind, case.dtype, case.shape).requires_grad_()
    result = torch.distributed.nn.functional.all_reduce(tensor, case.op)
    result.square().sum().backward()
    return [result, tensor.grad]


@route(dtypes=FLOATS)
def nn_reduce(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    result = torch.distributed.nn.functional.reduce(c.tensor(kind, case.dtype, case.shape), 0, case.op)
    return [result] if c.rank == 0 else []


@route(dtypes=FLOATS)
def nn_reduce_scatter(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    inputs = [tensor.contiguous() for tensor in c.tensor(kind, case.dtype, case.shape).chunk(c.ranks)]
    return [torch.distributed.nn.functional.reduce_scatter(torch.empty_like(inputs[0]), inputs, case.op)]


# torch.compile


@route(dtypes=(torch.float32,))
def compiled_all_reduce(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor * 2
        dist.all_reduce(tensor, op=case.op)
        return tensor + 1

    torch._dynamo.reset()
    return [step(c.tensor(kind, case.dtype, case.shape))]


@route(dtypes=(torch.float32,))
def compiled_functional(c: Context, kind: str, case: Case) -> list[torch.Tensor]:
    group = c.group

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(tensor: torch.Tensor) -> torch.Tensor:
        return funcol.all_reduce(tensor * 2, case.name, group) + 1

    torch._dynamo.reset()
    return [step(c.tensor(kind, case.dtype, case.shape))]
