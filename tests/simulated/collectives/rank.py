"""One rank: runs the sections named on the command line and writes what it saw."""

from __future__ import annotations

import importlib
import json
import os
import sys

import torch.distributed as dist
from context import Context


def main() -> None:
    context = Context()
    report = {name: importlib.import_module(f"section_{name}").rows(context) for name in sys.argv[1:]}
    with open(os.environ["REPORT"], "w") as file:
        json.dump(report, file)
    dist.barrier(group=context.cpu_group)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
