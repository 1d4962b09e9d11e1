"""Keep a process on the CPUs next to its card, by sysfs."""

from __future__ import annotations

import os

from xpu_shim.core.log import logger
from xpu_shim.devices.machine import machine
from xpu_shim.devices.pinning import Pinned, pinned
from xpu_shim.intel import stack

_log = logger("xpu_shim.devices")


def parse_cpu_list(text: str) -> set[int]:
    """CPU numbers of the kernel's list format: "0-3,8" is {0, 1, 2, 3, 8}; the empty text is no CPU.

    Raises:
        ValueError: for any other form.
    """
    cpus: set[int] = set()
    for part in text.split(","):
        if not part.strip():
            continue
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError(f"CPU list {text!r}: {part!r} is not a number or a range such as 0-15")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def local_cpus(where: Pinned) -> set[int]:
    """The CPUs next to a pinned device's card; empty if the machine does not tell."""
    here = machine()
    if where.device is None or where.device.card >= len(here.gpus):
        return set()
    gpu = here.gpus[where.device.card]
    text = gpu.local_cpus
    if gpu.numa_node is not None:
        text = stack.numa_nodes().get(gpu.numa_node, text)
    elif not text:
        return set()
    return parse_cpu_list(text)


def set_affinity() -> set[int]:
    """Restrict this process to the CPUs next to its card; returns them, or nothing if nothing was changed.

    What the process was already restricted to (a container, taskset) is kept. Never raises: a process on the wrong CPUs
    is slower, not wrong.
    """
    where = pinned()
    if where is None:
        return set()
    try:
        cpus = local_cpus(where) & os.sched_getaffinity(0)
        if not cpus:
            return set()
        os.sched_setaffinity(0, cpus)
    except (OSError, ValueError) as error:
        _log.warning("could not bind to the CPUs next to xpu:%d: %s", where.index, error)
        return set()
    _log.info("bound to %d CPUs next to xpu:%d", len(cpus), where.index)
    return cpus
