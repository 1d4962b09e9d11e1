"""Gradients of sharded and replicated models, against local gradients summed over gloo and divided by hand."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from context import counted, describe, difference, patched
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from context import Context

#: This rank, and its device; set by `rows`.
c: Any = None
DEVICE: Any = None
SEED_OF_DATA = 7


def model() -> nn.Sequential:
    torch.manual_seed(1)
    block = lambda: nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))  # noqa: E731
    return nn.Sequential(nn.Linear(8, 16), block(), block(), nn.Linear(16, 4))


def data(steps: int = 1) -> list[torch.Tensor]:
    """This rank's batches."""
    generator = torch.Generator().manual_seed(SEED_OF_DATA + c.rank)
    return [torch.randn(4, 8, generator=generator) for _ in range(steps)]


def loss(module: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return module(batch).square().mean()


def reference(steps: int = 1, factor: float | None = None) -> list[torch.Tensor]:
    """Averaged gradients without any average: summed over gloo, divided by the number of ranks or `factor`."""
    module = model()
    for batch in data(steps):
        loss(module, batch).backward()
    gradients = [parameter.grad for parameter in module.parameters()]
    for gradient in gradients:
        dist.all_reduce(gradient, group=c.cpu_group)
        gradient.div_(factor or c.ranks)
    return gradients


def gradients(module: nn.Module) -> list[torch.Tensor]:
    found = []
    for parameter in module.parameters():
        gradient = parameter.grad
        if isinstance(gradient, DTensor):
            gradient = gradient.to(DEVICE).full_tensor()
        found.append(gradient.float())
    return found


def shard(mesh: Any, factor: float | None = None, **options: Any) -> nn.Module:
    module = model() if "offload_policy" in options else model().to(DEVICE)
    for part in [module[1], module[2], module]:
        fully_shard(part, mesh=mesh, **options)
    if factor is not None:
        for part in [module[1], module[2], module]:
            part.set_gradient_divide_factor(factor)
    return module


def trained(module: nn.Module, steps: int = 1) -> nn.Module:
    for batch in data(steps):
        loss(module, batch.to(DEVICE)).backward()
    return module


def sharded(*shape: int, factor: float | None = None, **options: Any) -> Callable[[], Any]:
    """FSDP2 on a mesh of this shape, and the reference for it."""
    return lambda: (
        gradients(trained(shard(c.mesh("xpu", shape), factor, **options))),
        reference(factor=factor),
    )


def forced(*shape: int, factor: float) -> Any:
    """FSDP2 with torch's own switch for SUM on every module."""
    module = shard(c.mesh("xpu", shape), factor)
    for part in [module[1], module[2], module]:
        part.set_force_sum_reduction_for_comms(True)
    return gradients(trained(module)), reference(factor=factor)


def accumulated() -> Any:
    """HSDP that all-reduces only on the last of three batches."""
    module = shard(c.mesh("xpu", (c.ranks // 2, 2)))
    for step, batch in enumerate(data(3)):
        module.set_requires_all_reduce(step == 2)
        loss(module, batch.to(DEVICE)).backward()
    return gradients(module), reference(3)


def replicated() -> Any:
    from torch.distributed._composable.replicate_with_fsdp import replicate

    module = model().to(DEVICE)
    for part in [module[1], module[2], module]:
        replicate(part, mesh=c.mesh("xpu"))
    return gradients(trained(module)), reference()


def fsdp1() -> Any:
    module = FullyShardedDataParallel(model(), device_id=DEVICE, use_orig_params=True)
    trained(module)
    with FullyShardedDataParallel.summon_full_params(module, with_grads=True):
        return [parameter.grad.clone() for parameter in module.parameters()], reference()


def ddp() -> Any:
    return gradients(trained(nn.parallel.DistributedDataParallel(model().to(DEVICE)))), reference()


def ddp_with_averaging_hook() -> Any:
    module = nn.parallel.DistributedDataParallel(model().to(DEVICE))

    # torch looks at a hook's annotations, and wants none or its own types.
    def hook(state, bucket):
        work = dist.all_reduce(bucket.buffer(), dist.ReduceOp.AVG, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    module.register_comm_hook(None, hook)
    return gradients(trained(module)), reference()


def clipped(norm: float) -> Any:
    """The total norm and the clipped gradients."""
    module = trained(shard(c.mesh("xpu")))
    total = nn.utils.clip_grad_norm_(module.parameters(), 0.05, norm_type=norm)
    twin, expected = model(), reference()
    for parameter, gradient in zip(twin.parameters(), expected, strict=True):
        parameter.grad = gradient
    expected_total = nn.utils.clip_grad_norm_(twin.parameters(), 0.05, norm_type=norm)
    return [total.full_tensor(), *gradients(module)], [expected_total, *gradients(twin)]


def checkpoint() -> Any:
    """An optimizer step, saved, lost and loaded; compared with the same step on the CPU."""
    import torch.distributed.checkpoint as dcp

    folder = [tempfile.mkdtemp() if c.rank == 0 else None]
    dist.broadcast_object_list(folder, 0, group=c.cpu_group)
    module = trained(shard(c.mesh("xpu")))
    torch.optim.SGD(module.parameters(), 0.1).step()
    state = {"model": module.state_dict()}
    dcp.save(state, checkpoint_id=folder[0])
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    dcp.load(state, checkpoint_id=folder[0])
    twin = copy.deepcopy(model())
    for parameter, gradient in zip(twin.parameters(), reference(), strict=True):
        parameter.grad = gradient
    torch.optim.SGD(twin.parameters(), 0.1).step()
    ours = [parameter.full_tensor() for parameter in module.parameters()]
    return ours, list(twin.parameters())


BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
MIXED = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
FP16 = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float16)


def cases() -> dict[str, Callable[[], Any]]:
    """Name to a function that gives the gradients and the reference."""
    return {
        "fsdp2": sharded(c.ranks),
        "fsdp2_bf16": sharded(c.ranks, mp_policy=BF16),
        "fsdp2_mixed": sharded(c.ranks, mp_policy=MIXED),
        "fsdp2_fp16": sharded(c.ranks, mp_policy=FP16),
        "fsdp2_cpu_offload": sharded(c.ranks, offload_policy=CPUOffloadPolicy()),
        "fsdp2_factor": sharded(c.ranks, factor=3.0),
        "hsdp": sharded(c.ranks // 2, 2),
        "hsdp_factor": sharded(c.ranks // 2, 2, factor=3.0),
        "hsdp_shard_of_one": sharded(c.ranks, 1),
        "hsdp_shard_of_one_factor": sharded(c.ranks, 1, factor=3.0),
        "hsdp_one_replica": sharded(1, c.ranks),
        "hsdp_accumulated": accumulated,
        "replicate": replicated,
        "fsdp1": fsdp1,
        "ddp": ddp,
        "ddp_with_averaging_hook": ddp_with_averaging_hook,
        "clip_grad_norm_2": lambda: clipped(2.0),
        "clip_grad_norm_inf": lambda: clipped(float("inf")),
        "checkpoint": checkpoint,
        "hsdp_shard_of_one_forced": lambda: forced(c.ranks, 1, factor=3.0),
    }


def outcome(case: Callable[[], Any]) -> dict[str, Any]:
    """Largest relative difference, whether all is within 1e-6, and what reached the backend; or the error."""
    counted()
    try:
        ours, expected = case()
        close = all(
            torch.allclose(a.detach().cpu().float(), b.detach().float(), rtol=1e-6, atol=1e-6)
            for a, b in zip(ours, expected, strict=True)
        )
        row: dict[str, Any] = {"difference": difference(ours, expected), "close": close}
    except Exception as error:
        row = {"error": describe(error)}
    dist.barrier(group=c.cpu_group)
    return {**row, "counts": counted()}


def rows(context: Context) -> dict[str, Any]:
    """Case to `off` and `on`."""
    global c, DEVICE
    c, DEVICE = context, context.device("xpu")
    report: dict[str, Any] = {name: {"off": outcome(case)} for name, case in cases().items()}
    with patched():
        for name, case in cases().items():
            report[name]["on"] = outcome(case)
    return report
