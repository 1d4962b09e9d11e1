"""Ends with collectives in flight and no word to the process group, as scripts do."""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("cpu:gloo,xpu:xccl")
rank = dist.get_rank()
torch.xpu.set_device(rank)
works = []
for _ in range(200):
    tensor = torch.ones(1000, device="xpu")
    tensor.marked = [tensor]  # has a Python object, which needs the interpreter when the work lets go of it
    works.append(dist.all_reduce(tensor, async_op=True))
    works[-1].get_future().then(lambda future: None)
sys.stdout.write(f"rank {rank} leaves\n")
