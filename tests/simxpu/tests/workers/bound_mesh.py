"""A two-dimensional DeviceMesh over a default group that is bound to a device_id."""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

device = torch.device("xpu", int(os.environ["LOCAL_RANK"]))
torch.xpu.set_device(device)
dist.init_process_group("xccl", device_id=device)
mesh = init_device_mesh("xpu", (2, 2), mesh_dim_names=("replicate", "shard"))
x = torch.ones(1, device=device)
dist.all_reduce(x, group=mesh.get_group("shard"))
sys.stdout.write(f"sum {x.item()}\n")  # in one piece, unlike print: ranks are unbuffered
dist.destroy_process_group()
