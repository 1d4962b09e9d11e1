"""verl's NUMA binding works with sysfs instead of NVML."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.numa",
    targets=("verl.utils.distributed:set_numa_affinity",),
    why=(
        "verl asks NVML which CPUs are next to a card: `Warning: pynvml not available, skipping NUMA affinity setup` "
        "on stdout and no binding, or, where an NVIDIA card is present too, binding to that card's CPUs."
    ),
    how="On xpu the process is bound to the CPUs that sysfs lists next to its card, within what it may use already.",
    upstream=("https://github.com/volcengine/verl/pull/3471", "https://github.com/volcengine/verl/pull/5627"),
    remove_when="verl asks its platform for the NUMA node.",
    versions={"verl": ("0.7.1", "0.10")},
    processes=("driver", "worker"),
    required=False,
)


def apply(install: Install) -> None:
    install.replace("set_numa_affinity", by_sysfs)


def by_sysfs(original):
    def set_numa_affinity():
        from verl.utils.device import get_device_name

        if get_device_name() != "xpu":
            return original()
        from xpu_shim.devices import numa

        numa.set_affinity()
        return None

    return set_numa_affinity
