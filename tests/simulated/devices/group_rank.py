"""One rank of a test: makes a process group as verl does and prints what it got, as JSON after "RANK "."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta

import torch
import verl  # noqa: F401  (arms the shim, as in every program of verl)
from torch.distributed import init_device_mesh


def main() -> None:
    backend, bind = sys.argv[1], "--device-id" in sys.argv
    options = {"device_id": torch.device("xpu", int(os.environ["LOCAL_RANK"]))} if bind else {}
    torch.distributed.init_process_group(backend, timeout=timedelta(seconds=90), **options)
    rank = torch.distributed.get_rank()
    result = {"rank": rank, "index": torch.xpu.current_device(), "backend": torch.distributed.get_backend()}
    for device in ("cpu", "xpu"):
        tensor = torch.full((3,), float(rank + 1), device=device)
        torch.distributed.all_reduce(tensor)
        result[device] = tensor.tolist()
    if "--mesh" in sys.argv:
        mesh = init_device_mesh("xpu", (2, 1), mesh_dim_names=("replicate", "shard"))
        result["mesh"] = mesh["replicate"].size()
    if "numa" in sys.argv:
        from verl.utils.distributed import set_numa_affinity

        set_numa_affinity()
        result["cpus"] = sorted(os.sched_getaffinity(0))
    result["uuid"] = str(torch.xpu.get_device_properties(torch.xpu.current_device()).uuid)
    # In one piece: torchrun's ranks are unbuffered, and `print` would write the line's end apart.
    sys.stdout.write(f"RANK {json.dumps(result)}\n")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
