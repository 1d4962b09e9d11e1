"""Runs alone in a child process: real work on one device, or as one rank of a collective.

Prints one JSON object a stage, so that the parent knows how far it came when it crashed or hung. Arguments: "count", or
"device" or "collective" and an index.
"""

import json
import os
import sys

#: Bytes of the allocation that free memory must notice.
BLOCK = 256 << 20


def say(**values):
    """One stage, at once: what follows may never come."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def device(index):
    """Allocate, copy both ways, multiply; compare with the CPU."""
    say(stage="import torch")
    import torch

    wrong = []
    say(stage="select device")
    torch.xpu.set_device(index)
    where = torch.device("xpu", index)
    say(stage="read free memory")
    try:
        before, total = torch.xpu.mem_get_info(index)
    except RuntimeError:
        before, total = 0, 0  # integrated GPUs do not tell
    say(stage="allocate")
    block = torch.ones(BLOCK // 4, dtype=torch.float32, device=where)
    torch.xpu.synchronize()
    say(stage="read free memory again")
    after = torch.xpu.mem_get_info(index)[0] if total else 0
    memory = "free memory moves" if before - after >= BLOCK // 2 else "free memory is not told reliably"
    say(stage="copy")
    generator = torch.Generator().manual_seed(index)
    source = torch.randn(1 << 20, generator=generator)
    if not torch.equal(source.to(where).to("cpu"), source):
        wrong.append("a copy to the device and back changed values")
    if float(block[:1000].sum()) != 1000.0:
        wrong.append("a sum of ones is not their number")
    del block
    for dtype, allowed in ((torch.float32, 1e-3), (torch.bfloat16, 0.1)):
        say(stage=f"matmul {dtype}")
        left = torch.randn(256, 128, generator=generator)
        right = torch.randn(128, 256, generator=generator)
        product = (left.to(where, dtype) @ right.to(where, dtype)).float().cpu()
        exact = left.to(dtype).float() @ right.to(dtype).float()
        error = float((product - exact).abs().max() / exact.abs().max())
        if not error <= allowed:
            wrong.append(f"matmul in {dtype} is off by {error:.2g}")
    say(stage="synchronize")
    torch.xpu.synchronize()
    say(stage="done", wrong=wrong, detail=f"allocation, copy and matmul are right; {memory}")


def collective(index):
    """Sum, broadcast and gather over all ranks; compare with what must come out."""
    say(stage="import torch")
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    wrong = []
    say(stage="select device")
    torch.xpu.set_device(index)
    where = torch.device("xpu", index)
    say(stage="init_process_group")
    dist.init_process_group("cpu:gloo,xpu:xccl", timeout=timedelta(seconds=120))
    for count in (1, 1 << 20, 1 << 25):
        say(stage=f"all_reduce of {count} numbers")
        tensor = torch.full((count,), float(rank + 1), device=where)
        dist.all_reduce(tensor)
        torch.xpu.synchronize()
        if float(tensor.min()) != size * (size + 1) / 2 or float(tensor.max()) != size * (size + 1) / 2:
            wrong.append(f"sum of {count} numbers")
    say(stage="broadcast")
    tensor = torch.full((1 << 20,), float(rank), device=where)
    dist.broadcast(tensor, 0)
    if float(tensor.abs().max()) != 0.0:
        wrong.append("broadcast")
    say(stage="all_gather")
    gathered = torch.empty(size * 1000, device=where)
    dist.all_gather_into_tensor(gathered, torch.full((1000,), float(rank), device=where))
    if gathered[::1000].tolist() != [float(number) for number in range(size)]:
        wrong.append("all_gather")
    for operation, expected in ((dist.ReduceOp.MAX, size), (dist.ReduceOp.MIN, 1)):
        tensor = torch.tensor([rank + 1], device=where)
        dist.all_reduce(tensor, operation)
        if int(tensor) != expected:
            wrong.append(f"{operation} gives {int(tensor)} for {expected}")
    say(stage="average")
    average = "averages are native"
    tensor = torch.full((1,), float(rank + 1), device=where)
    try:
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        if float(tensor) != (size + 1) / 2:
            average = (
                f"native averages are wrong ({float(tensor)} for {(size + 1) / 2}); the shim computes them from sums"
            )
    except RuntimeError as error:
        average = f"no native averages ({str(error)[:200]}); the shim computes them from sums"
    say(stage="destroy_process_group")
    dist.destroy_process_group()
    say(stage="done", wrong=wrong, detail=f"sum, broadcast, gather, max and min are right; {average}")


def main():
    what = sys.argv[1]
    if what == "count":
        say(stage="import torch")
        import torch

        say(stage="count devices")
        say(stage="done", count=torch.xpu.device_count() if hasattr(torch, "xpu") else 0)
    elif what == "device":
        device(int(sys.argv[2]))
    else:
        collective(int(sys.argv[2]))


if __name__ == "__main__":
    main()
