"""FSDP2, FSDP1, DDP, DTensor, tensor parallel and distributed checkpoints on four ranks, against a CPU reference.

Run with the fault avg_abort: the stock path must fail with oneCCL's words, the cured one must equal the reference.
"""

import copy
import tempfile

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from cases import case, device, main, rank, world
from simxpu import probe
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

ONECCL = "average operation is not supported for the scheduler path"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def new_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), Block(), Block(), nn.Linear(16, 3))


def mesh(dimensions: int):
    if dimensions == 1:
        return init_device_mesh("xpu", (world,), mesh_dim_names=("shard",))
    return init_device_mesh("xpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))


def sharded(model, on, cure: str, **options):
    """fully_shard of each block and the root; SUM instead of AVG on no module, the root, or all."""
    for module in model:
        if isinstance(module, Block):
            fully_shard(module, mesh=on, **options)
    fully_shard(model, mesh=on, **options)
    for module in model.modules():
        if isinstance(module, FSDPModule) and (cure == "all" or (cure == "root" and module is model)):
            module.set_force_sum_reduction_for_comms(True)
    return model


def train(on, cure: str, tolerance: float = 1e-6, **options):
    """Three AdamW steps; gradients of each step must equal those of the whole batch on the CPU."""
    reference = new_model()
    offload = "offload_policy" in options
    model = copy.deepcopy(reference)
    model = sharded(model if offload else model.to(device), on, cure, **options)
    optimizers = [torch.optim.AdamW(m.parameters(), 1e-2) for m in (model, reference)]
    torch.manual_seed(7)
    data = torch.randn(3, world, 5, 8)
    for batch in data:
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(batch[rank].to(device)).square().mean().backward()
        sum(reference(part).square().mean() / world for part in batch).backward()
        for (name, p), q in zip(model.named_parameters(), reference.parameters(), strict=True):
            gradient = (p.grad.to(device) if offload else p.grad).full_tensor().cpu()
            difference = (gradient - q.grad).abs().max().item()
            assert difference < tolerance, (name, difference)
        nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        for optimizer in optimizers:
            optimizer.step()
    return model, reference, optimizers[0]


def expect_abort(on, cure: str):
    with pytest.raises(RuntimeError, match=ONECCL):
        train(on, cure)


@case
def fsdp2_stock_fails_with_oneccls_words():
    expect_abort(mesh(1), "none")
    expect_abort(mesh(2), "none")


@case
def fsdp2_cure_on_the_root_only_is_not_enough():
    expect_abort(mesh(1), "root")


@case
def fsdp2_1d_with_sum_equals_the_reference():
    probe.reset()
    train(mesh(1), "all")
    assert probe.avg_reductions() == 0
    assert probe.counts()["reduce_scatter:sum"] > 0


@case
def fsdp2_2d_with_sum_equals_the_reference():
    train(mesh(2), "all")
    train(mesh(2), "all", reshard_after_forward=False)


@case
def fsdp2_mixed_precision():
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    train(mesh(1), "all", tolerance=5e-2, mp_policy=policy)


@case
def fsdp2_cpu_offload():
    train(mesh(1), "all", offload_policy=CPUOffloadPolicy())


@case
def fsdp1():
    from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, ShardingStrategy, StateDictType

    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.NO_SHARD):
        reference = new_model()
        model = FullyShardedDataParallel(
            copy.deepcopy(reference), device_id=device, sharding_strategy=strategy, use_orig_params=True
        )
        torch.manual_seed(7)
        data = torch.randn(world, 5, 8)
        model(data[rank].to(device)).square().mean().backward()
        sum(reference(part).square().mean() / world for part in data).backward()
        for m in (model, reference):
            torch.optim.SGD(m.parameters(), 0.1).step()
        whole = FullStateDictConfig(offload_to_cpu=True, rank0_only=False)
        with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, whole):
            state = model.state_dict()
        for name, value in reference.state_dict().items():
            assert (state[name].cpu() - value).abs().max() < 1e-6, name


@case
def ddp():
    reference = new_model()
    model = nn.parallel.DistributedDataParallel(copy.deepcopy(reference).to(device), device_ids=[device.index])
    torch.manual_seed(7)
    data = torch.randn(world, 5, 8)
    model(data[rank].to(device)).square().mean().backward()
    sum(reference(part).square().mean() / world for part in data).backward()
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        assert (p.grad.cpu() - q.grad).abs().max() < 1e-6


@case
def full_state_dict():
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
        get_optimizer_state_dict,
        set_model_state_dict,
    )

    for dimensions in (1, 2):
        model, reference, optimizer = train(mesh(dimensions), "all")
        to_host = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_model_state_dict(model, options=to_host)
        for name, value in reference.state_dict().items():
            assert rank or (state[name] - value).abs().max() < 2e-5, name
        get_optimizer_state_dict(model, optimizer, options=to_host)
        new = {k: torch.full_like(v, 0.5) for k, v in reference.state_dict().items()} if rank == 0 else {}
        from_rank_0 = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(model, new, options=from_rank_0)
        assert all((p.full_tensor() == 0.5).all() and p.device.type == "xpu" for p in model.parameters())


@case
def distributed_checkpoint():
    import torch.distributed.checkpoint as dcp

    path = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(path, 0)
    model, _, _ = train(mesh(1), "all")
    state = {"model": model.state_dict()}
    dcp.save(state, checkpoint_id=path[0])
    before = {k: v.full_tensor().clone() for k, v in model.state_dict().items()}
    for p in model.parameters():
        p.data.zero_()
    dcp.load(state, checkpoint_id=path[0])
    assert all(torch.equal(v.full_tensor(), before[k]) for k, v in model.state_dict().items())


@case
def dtensor():
    on = mesh(1)
    x = distribute_tensor(torch.arange(16.0, device=device).view(4, 4), on, [Shard(0)])
    assert x.to_local().shape == (1, 4)
    assert torch.equal(x.redistribute(on, [Shard(1)]).full_tensor().cpu(), torch.arange(16.0).view(4, 4))
    assert (x @ x.redistribute(on, [Replicate()])).full_tensor().shape == (4, 4)
    torch.manual_seed(0)
    ones = distribute_tensor(torch.ones(4, 4, device=device), on, [Replicate()])
    dropped = nn.functional.dropout(ones).to_local()
    parts = [torch.empty(4, 4, device=device) for _ in range(world)]
    dist.all_gather(parts, dropped)
    assert all(torch.equal(parts[0], p) for p in parts)
    assert isinstance(x, DTensor)


@case
def tensor_parallel():
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    model = copy.deepcopy(reference).to(device)
    parallelize_module(model, mesh(1), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x = torch.randn(3, 8)
    assert torch.allclose(model(x.to(device)).cpu(), reference(x), atol=1e-6)


if __name__ == "__main__":
    main()
