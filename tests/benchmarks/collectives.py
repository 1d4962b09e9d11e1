"""What the reductions cost with the patches in place, on simulated devices: ratios and differences within one run.

    python tests/benchmarks/collectives.py

Patched and unpatched rounds alternate, so that a machine that gets slower meanwhile slows both. Printed are
- the Python call of a SUM all_reduce and of a functional one, microseconds: the best of many rounds of either kind;
- the step time of an FSDP2 model on two ranks whose stack can average, as the ratio patched / stock: its median over
  pairs of neighbouring rounds. There the stock step lets the collective divide and the patched one divides afterwards.

Exit status 1 if a SUM call costs more than 2 us more, or a step differs by more than 2 %.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

PATCHES = ("torch.fsdp2_sum", "torch.process_group_reductions", "torch.functional_reductions")
BUDGET_US, BUDGET_RATIO = 2.0, 0.02


def switch(on: bool) -> None:
    """Install the patches, or take them back."""
    from xpu_shim.core.apply import apply_patch, remove_patch

    for name in PATCHES if on else reversed(PATCHES):
        (apply_patch if on else remove_patch)(name)


def start_group(rank: int, ranks: int, rendezvous: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.xpu.set_device(rank)
    dist.init_process_group("cpu:gloo,xpu:xccl", init_method=rendezvous, rank=rank, world_size=ranks)


def best(call: Callable[[], object], bursts: int, calls: int = 50) -> float:
    """Microseconds of one call: the quickest of some bursts, each short enough to be run without an interruption."""
    quickest = float("inf")
    for _ in range(bursts):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        quickest = min(quickest, time.perf_counter() - start)
    return quickest / calls * 1e6


def python_calls(rendezvous: str, rounds: int = 12, bursts: int = 100) -> bool:
    """Time the calls on a group of one; returns whether all are within the budget."""
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as funcol

    start_group(0, 1, rendezvous)
    tensor = torch.ones(1, device="xpu")
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.SUM
    world, tensors, cpu = dist.group.WORLD, [tensor], torch.ones(1)
    measured: dict[str, Callable[[], object]] = {
        "dist.all_reduce, SUM": lambda: dist.all_reduce(tensor),
        "ProcessGroup.allreduce, SUM": lambda: world.allreduce(tensors, options),
        "dist.all_reduce, MAX on the CPU": lambda: dist.all_reduce(cpu, dist.ReduceOp.MAX),
        'functional all_reduce, "sum"': lambda: funcol.all_reduce(tensor, "sum", world).wait(),
    }
    seen: dict[tuple[str, bool], list[float]] = {}
    for _ in range(rounds):
        for on in (False, True):
            if on:
                switch(True)
            for name, call in measured.items():
                best(call, 2)
                seen.setdefault((name, on), []).append(best(call, bursts))
            if on:
                switch(False)
    within = True
    print(f"{'us per call (simulated device, one rank)':42}{'stock':>8}{'patched':>9}{'more':>7}")
    for name in measured:
        stock, patched = min(seen[name, False]), min(seen[name, True])
        print(f"{name:42}{stock:8.2f}{patched:9.2f}{patched - stock:+7.2f}")
        within &= "SUM" not in name or patched - stock <= BUDGET_US
    dist.destroy_process_group()
    return within


def fsdp2_steps(rank: int, ranks: int, rendezvous: str, pairs: int = 60, steps: int = 1) -> bool:
    """Time training steps on this rank; rank 0 prints. Returns whether the ratio is within the budget."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    start_group(rank, ranks, rendezvous)
    torch.manual_seed(0)
    module = nn.Sequential(*[nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512)) for _ in range(4)])
    module.to("xpu")
    mesh = init_device_mesh("xpu", (ranks,))
    for block in module:
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)
    batch = torch.randn(128, 512, device="xpu")

    def step() -> None:
        module(batch).square().mean().backward()
        module.zero_grad()

    def seconds(on: bool) -> float:
        if on:
            switch(True)
        step()
        dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        torch.xpu.synchronize()
        dist.barrier()
        elapsed = time.perf_counter() - start
        if on:
            switch(False)
        return elapsed / steps

    seconds(False), seconds(True)
    times: list[tuple[float, float]] = []
    for pair in range(pairs):
        # Which comes first alternates too.
        first = pair % 2 == 0
        one, other = seconds(first), seconds(not first)
        times.append((other, one) if first else (one, other))
    ratios = torch.tensor([patched / stock for stock, patched in times])
    dist.all_reduce(ratios)  # of both ranks, so that both come to the same answer
    ratio = statistics.median((ratios / ranks).tolist())
    if rank == 0:
        stock = statistics.median(stock for stock, _ in times)
        spread = statistics.quantiles((ratios / ranks).tolist(), n=4)
        print(
            f"FSDP2 step, {ranks} ranks: stock {stock * 1e3:.1f} ms, patched / stock {ratio:.3f} "
            f"(half of the pairs between {spread[0]:.3f} and {spread[2]:.3f})",
            flush=True,
        )
    dist.destroy_process_group()
    return abs(ratio - 1) <= BUDGET_RATIO


def main(arguments: list[str]) -> int:
    if arguments:
        rank, ranks, rendezvous = int(arguments[0]), int(arguments[1]), arguments[2]
        return 0 if (python_calls(rendezvous) if ranks == 1 else fsdp2_steps(rank, ranks, rendezvous)) else 1
    status = 0
    for ranks in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            rendezvous = (Path(folder) / "rendezvous").as_uri()
            environment = {**os.environ, "SIMXPU": "1", "SIMXPU_FAULTS": "", "OMP_NUM_THREADS": "1"}
            command = [sys.executable, __file__]
            processes = [
                subprocess.Popen([*command, str(rank), str(ranks), rendezvous], env=environment)
                for rank in range(ranks)
            ]
            try:
                status |= max(process.wait(timeout=600) for process in processes)
            finally:
                for process in processes:
                    process.kill()
    return status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
