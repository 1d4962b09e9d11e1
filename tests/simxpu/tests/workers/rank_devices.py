"""Writes what a rank sees, in one piece: torchrun's ranks are unbuffered, and `print` would write the line's end apart."""

import os
import sys

import torch
import torch.distributed as dist

rank = int(os.environ["LOCAL_RANK"])
torch.xpu.set_device(rank)
dist.init_process_group("xccl")
x = torch.full((1,), rank + 1.0, device="xpu")
dist.all_reduce(x)
seen = f"rank {rank} sees {torch.xpu.device_count()} uses {torch.xpu.current_device()} sum {x.item()}"
sys.stdout.write(f"{seen}\n")
dist.destroy_process_group()
