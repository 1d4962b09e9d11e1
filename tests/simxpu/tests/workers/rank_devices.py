"""Prints what a rank sees."""

import os

import torch
import torch.distributed as dist

rank = int(os.environ["LOCAL_RANK"])
torch.xpu.set_device(rank)
dist.init_process_group("xccl")
x = torch.full((1,), rank + 1.0, device="xpu")
dist.all_reduce(x)
print(f"rank {rank} sees {torch.xpu.device_count()} uses {torch.xpu.current_device()} sum {x.item()}", flush=True)
dist.destroy_process_group()
