"""Host memory, /dev/shm, and limits of the process."""

from __future__ import annotations

import re

from xpu_shim.doctor.check import Finding, check, error, ok, skipped, warning
from xpu_shim.doctor.facts import GIB, memory_of, visible_cards
from xpu_shim.doctor.machine import CouldNotLook, Machine

#: verl's default bucket of a weight sync, per rollout rank (rollout.update_weights_bucket_megabytes=2048).
BUCKET = 2 * GIB
#: Share of the host's memory at which Ray begins to kill (RAY_memory_usage_threshold).
RAY_THRESHOLD = 0.95


def _meminfo(machine: Machine) -> dict[str, int]:
    """Bytes by name of /proc/meminfo."""
    found = re.findall(r"^(\w+):\s+(\d+) kB", machine.need("/proc/meminfo"), re.MULTILINE)
    return {name: int(value) * 1024 for name, value in found}


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"


@check(
    "memory.shm_size",
    "/dev/shm is large enough",
    "A short /dev/shm (64 MiB in a default container) kills without a traceback: `Bus error`, SIGBUS, exit code -7, "
    "`OSError: [Errno 28] No space left on device`. verl's weight sync wants 2 GiB a rollout rank there, "
    "Ray and oneCCL "
    "their share.",
    "https://github.com/verl-project/verl/pull/7917",
)
def shm_size(machine: Machine) -> Finding:
    if not machine.exists("/dev/shm"):
        return error(
            "/dev/shm does not exist", "sudo mkdir -p /dev/shm && sudo mount -t tmpfs -o size=16g tmpfs /dev/shm"
        )
    total = machine.space("/dev/shm").total
    wanted = max(1, len(machine.cards)) * BUCKET
    fix = (
        f"docker run --ipc=host ...   # or --shm-size {max(16, 2 * wanted // GIB)}g"
        if machine.in_container
        else f"sudo mount -o remount,size={max(16, 2 * wanted // GIB)}g /dev/shm"
    )
    if total < GIB:
        return error(f"{_gib(total)}", fix)
    if total < wanted:
        return warning(f"{_gib(total)}; {_gib(wanted)} for {len(machine.cards)} rollout ranks", fix)
    return ok(_gib(total))


@check(
    "memory.shm_free",
    "/dev/shm is not full of what dead processes left",
    "`Bus error` or `No space left on device` in a job that ran yesterday: killed jobs leave their segments behind.",
    "https://github.com/sgl-project/sglang/pull/40720",
)
def shm_free(machine: Machine) -> Finding:
    size = machine.space("/dev/shm")
    if size.total < GIB:
        return skipped("/dev/shm is too small altogether, see memory.shm_size")
    if size.free >= min(size.total // 4, max(1, len(machine.cards)) * BUCKET):
        return ok(f"{_gib(size.free)} of {_gib(size.total)} are free")
    largest = ", ".join((machine.listdir("/dev/shm") or [])[:4])
    return warning(
        f"{_gib(size.free)} of {_gib(size.total)} are free ({largest})",
        "ls -lhS /dev/shm | head; fuser -v /dev/shm/*   # remove what no process has open",
    )


@check(
    "memory.host_budget",
    "host memory is enough for workers that map every card",
    "With several visible cards each worker's host memory grows by the cards' memory: the host runs out, Ray kills "
    "(`exceeds the memory usage threshold`) or the kernel does.",
    "https://github.com/vllm-project/vllm/issues/53822",
)
def host_budget(machine: Machine) -> Finding:
    if not machine.cards:
        return skipped("no discrete Intel GPU")
    cards = visible_cards(machine)
    sizes = [memory_of(machine, gpu) for gpu in cards]
    known = [size for size in sizes if size]
    if len(known) < len(cards):
        raise CouldNotLook(f"the memory of {len(cards) - len(known)} of {len(cards)} cards is not in sysfs")
    available = _meminfo(machine).get("MemAvailable")
    if available is None:
        raise CouldNotLook("/proc/meminfo has no MemAvailable")
    limit = _cgroup_room(machine)
    room = min(available, limit) if limit is not None else available
    evidence = f"{_gib(room)} of host memory available, {_gib(sum(known))} on {len(cards)} visible cards"
    if room >= sum(known):
        return ok(evidence)
    return warning(
        evidence,
        "export NEOReadDebugKeys=1 EnableDeferBacking=0   # against doubled backing; else fewer cards: "
        "ZE_AFFINITY_MASK",
    )


def _cgroup_room(machine: Machine) -> int | None:
    """Bytes this control group may still take, or None without a limit."""
    for limit, used, stat in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
            "/sys/fs/cgroup/memory/memory.stat",
        ),
    ):
        text = machine.read(limit)
        if text is None:
            continue
        if not text.isdigit() or int(text) > 1 << 60:
            return None
        inactive = re.search(r"^(?:total_)?inactive_file (\d+)", machine.read(stat) or "", re.MULTILINE)
        current = int(machine.read(used) or 0) - (int(inactive[1]) if inactive else 0)
        return max(0, int(text) - current)
    return None


@check(
    "memory.cgroup",
    "the container's memory limit leaves room",
    "The kernel kills at the limit, often the raylet: `SIGKILL`, `exit code 137`, `The actor is dead "
    "because its worker "
    "process has died`.",
    "https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files",
)
def cgroup(machine: Machine) -> Finding:
    room = _cgroup_room(machine)
    if room is None:
        return skipped("no memory limit on this control group")
    total = _meminfo(machine).get("MemTotal", 0)
    if room >= min(16 * GIB, total // 2 or 16 * GIB):
        return ok(f"{_gib(room)} left below the limit")
    return warning(
        f"{_gib(room)} left below the limit",
        "docker run --memory <more> ...   # or in Kubernetes: resources.limits.memory",
    )


@check(
    "memory.ray_threshold",
    "the host is not near the point where Ray kills workers",
    "`Memory on the node ... exceeds the memory usage threshold of 0.95. Ray killed this worker`. What "
    "counts is MemAvailable, "
    "not address space: a VmPeak of terabytes is harmless.",
    "https://github.com/kahlun/verl/pull/1",
)
def ray_threshold(machine: Machine) -> Finding:
    info = _meminfo(machine)
    if "MemAvailable" not in info or not info.get("MemTotal"):
        raise CouldNotLook("/proc/meminfo has no MemTotal or MemAvailable")
    threshold = RAY_THRESHOLD
    try:
        threshold = float(machine.environ.get("RAY_memory_usage_threshold", threshold))
    except ValueError:
        return error(
            f"RAY_memory_usage_threshold={machine.environ['RAY_memory_usage_threshold']} is not a number",
            "unset RAY_memory_usage_threshold",
        )
    used = 1 - info["MemAvailable"] / info["MemTotal"]
    if used < threshold - 0.1:
        return ok(f"{used:.0%} used, Ray kills at {threshold:.0%}")
    return warning(
        f"{used:.0%} used, Ray kills at {threshold:.0%}",
        "ps -eo rss,pid,args --sort=-rss | head   # end what is left over",
    )


@check(
    "memory.open_files",
    "enough open files per process",
    "Ray and oneCCL's handle exchange open thousands: `OSError: [Errno 24] Too many open files`, `opendir failed`.",
    "https://docs.ray.io/en/latest/cluster/vms/user-guides/large-cluster-best-practices.html",
)
def open_files(machine: Machine) -> Finding:
    found = re.search(r"^Max open files\s+(\S+)", machine.need("/proc/self/limits"), re.MULTILINE)
    if found is None:
        raise CouldNotLook("/proc/self/limits has no line for open files")
    if found[1] == "unlimited" or int(found[1]) >= 4096:
        return ok(found[1])
    return warning(f"{found[1]} (soft limit)", "ulimit -n 65536")
