"""Cases that show a fault of collectives on unmodified torch; run with the fault, or without it, as the test says."""

import os
import sys
import time

if "masked" in sys.argv:  # one card per process, as masks per worker give it
    os.environ["ZE_AFFINITY_MASK"] = os.environ["LOCAL_RANK"]
    os.environ["LOCAL_RANK"] = "0"
    sys.argv.remove("masked")

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from cases import case, device, main, rank, world
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def average(elements: int) -> float:
    x = torch.full((elements,), rank + 1.0, device=device)
    dist.all_reduce(x, dist.ReduceOp.AVG)
    return x[0].item()


@case
def average_is_right():
    assert average(4) == average(64) == (world + 1) / 2


@case
def small_averages_are_divided_twice():
    assert average(4) == (world + 1) / 2 / world
    assert average(33) == (world + 1) / 2 / world
    assert average(64) == (world + 1) / 2


def extremes() -> list[float]:
    result = []
    for op in (dist.ReduceOp.MIN, dist.ReduceOp.MAX):
        x = torch.full((2,), rank + 1.0, device=device)
        dist.all_reduce(x, op)
        result.append(x[0].item())
    return result


@case
def extremes_are_right():
    assert extremes() == [1, world]


@case
def extremes_are_sums():
    total = world * (world + 1) / 2
    assert extremes() == [total, total]


def backward_with_divide_factor() -> float:
    torch.manual_seed(0)
    model = nn.Linear(4, 4, bias=False).to(device)
    fully_shard(model, mesh=init_device_mesh("xpu", (world,)))
    model.set_gradient_divide_factor(8.0)
    model(torch.ones(1, 4, device=device)).sum().backward()
    return model.weight.grad.full_tensor().unique().item()


@case
def a_divide_factor_works():
    assert backward_with_divide_factor() == world / 8


@case
def a_divide_factor_is_refused():
    with pytest.raises(RuntimeError, match="PREMUL_SUM"):
        backward_with_divide_factor()


@case
def a_hung_call_blocks_until_the_limit():
    for _ in range(2):
        dist.all_reduce(torch.ones(1, device=device))
    start = time.monotonic()
    with pytest.raises(RuntimeError, match="simulated hang"):
        dist.all_reduce(torch.ones(1, device=device))
    assert time.monotonic() - start > 2.5
    dist.all_reduce(torch.ones(1, device=device))


@case
def a_hang_of_one_rank_holds_up_the_others():
    if rank == 1:
        work = dist.all_reduce(torch.ones(1, device=device), async_op=True)
        assert not work.is_completed()
        return
    work = dist.all_reduce(torch.ones(1, device=device), async_op=True)
    time.sleep(2)
    assert not work.is_completed()


@case
def masked_ranks_hang():
    assert torch.xpu.device_count() == 1
    start = time.monotonic()
    with pytest.raises(RuntimeError, match="hidden from each other"):
        dist.all_reduce(torch.ones(1, device=device))
    assert time.monotonic() - start > 2.5


@case
def unmasked_ranks_do_not_hang():
    assert torch.xpu.device_count() > 1
    dist.all_reduce(torch.ones(1, device=device))


if __name__ == "__main__":
    main()
