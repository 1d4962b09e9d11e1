"""Runs alone in a child process: imports torch, counts devices, says which libraries that loaded.

Prints one JSON object a stage, so that the parent knows how far it came when it crashed or hung.
"""

import json
import sys


def say(**values):
    """One stage, at once: what follows may never come."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def libraries():
    """Paths of the mapped libraries that come in several versions on one machine."""
    names = ("libsycl", "libccl", "libur_loader", "libze_loader", "libze_intel_gpu", "libmpi")
    found = set()
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            path = line.split(maxsplit=5)[-1].strip()
            if path.startswith("/") and path.rpartition("/")[2].startswith(names):
                found.add(path)
    return sorted(found)


def main():
    say(stage="import")
    import torch

    say(stage="count", version=torch.__version__, xpu=getattr(torch.version, "xpu", None))
    count = torch.xpu.device_count() if hasattr(torch, "xpu") else 0
    available = None
    try:
        from torch.distributed import is_xccl_available

        available = bool(is_xccl_available())
    except ImportError:
        pass
    say(stage="done", count=count, xccl=available, libraries=libraries())


if __name__ == "__main__":
    main()
