"""Runs the functions of a worker on all ranks, one after another, and prints one line for each.

``CASE name ok`` if it passed on every rank, else ``CASE name failed`` and the errors on stderr.
"""

import os
import sys
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
world = int(os.environ["WORLD_SIZE"])
device = torch.device("xpu", int(os.environ["LOCAL_RANK"]))
_cases = []


def case(function):
    _cases.append(function)
    return function


def start(**kwargs) -> None:
    torch.set_num_threads(1)
    torch.xpu.set_device(device)
    dist.init_process_group("cpu:gloo,xpu:xccl", timeout=timedelta(seconds=120), **kwargs)


def main() -> None:
    wanted = sys.argv[1:]
    start()
    for function in _cases:
        if wanted and function.__name__ not in wanted:
            continue
        failed = torch.zeros(1)
        try:
            function()
        except Exception:
            failed += 1
            print(f"rank {rank} {function.__name__}\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        dist.all_reduce(failed)  # CPU tensor: gloo, whatever fault is on
        if rank == 0:
            sys.stdout.write(f"CASE {function.__name__} {'failed' if failed.item() else 'ok'}\n")
    dist.destroy_process_group()
