"""Builds machines as directory trees: a healthy one with two Arc Pro B60, which tests then make sick."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from xpu_shim.doctor.machine import Machine, Ran, Space

GIB = 1 << 30
SITE = "opt/env/lib/python3.11/site-packages"

#: The release of every package of the healthy machine, and what it requires.
PACKAGES = {
    "torch": ("2.13.0+xpu", ["intel-sycl-rt==2026.0.0", "oneccl==2022.2.0", "triton-xpu==3.8.0"]),
    "intel_sycl_rt": ("2026.0.0", []),
    "oneccl": ("2022.2.0", []),
    "triton_xpu": ("3.8.0", []),
    "pyzes": ("0.1.2", []),
    "vllm": ("0.32.0+xpu", ["torch==2.13.0"]),
    "vllm_xpu_kernels": ("0.1.15", []),
    "ray": ("2.60.0", []),
    "verl": ("0.9.1", []),
    "transferqueue": ("0.1.11", []),
    "transformers": ("5.19.0", []),
    "kernels": ("0.9.0", []),
    "xpu_shim": ("0.1.0", []),
}

HOOK = {"hook": True, "package": "/opt/env/lib/python3.11/site-packages/xpu_shim/__init__.py", "sitecustomize": None}
TORCH = {
    "stage": "done",
    "version": "2.13.0+xpu",
    "xpu": "20260000",
    "count": 2,
    "xccl": True,
    "libraries": [
        "/opt/env/lib/libsycl.so.9",
        "/opt/env/lib/libccl.so.1",
        "/usr/lib/x86_64-linux-gnu/libze_loader.so.1",
    ],
}


class Tree:
    """A machine in a directory; attributes are what is handed to `Machine`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environ: dict[str, str] = {"PATH": "/opt/env/bin:/usr/bin", "HOME": "/home/user", "LANG": "C.UTF-8"}
        self.version = (3, 11, 7)
        self.uid, self.groups = 1000, frozenset({1000, 992})
        self.shm = Space(32 * GIB, 31 * GIB)
        self.unreachable = ""
        self.hook = Ran(0, json.dumps(HOOK), "")
        self.torch = Ran(0, json.dumps(TORCH), "")
        self.pidfd = Ran(0, json.dumps({"call": "", "errno": 0}), "")
        self.nodes = 0
        self.written: list[str] = []

    # -- writing -------------------------------------------------------------------------------------------------

    def write(self, path: str, text: str = "") -> Path:
        """A file, with the directories above it."""
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def remove(self, path: str) -> None:
        """A file or a whole directory."""
        import shutil

        target = self.root / path.lstrip("/")
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink()

    def card(self, address: str, device_id: int = 0xE211, *, integrated: bool = False, **files: str) -> str:
        """An Intel GPU with its sysfs and device file; keywords are further files of its PCI directory."""
        node = f"renderD{128 + self.nodes}"
        self.nodes += 1
        device = self.root / "sys/devices/pci0000:00" / address
        (device / "drm" / node).mkdir(parents=True)
        window = (1 << 25) if integrated else 32 * GIB
        contents = {
            "vendor": "0x8086",
            "device": f"0x{device_id:04x}",
            "class": "0x030000",
            "numa_node": "0",
            "local_cpulist": "0-7",
            "resource": f"0x0000000000000000 0x{(1 << 24) - 1:016x} 0x0\n0x0000000400000000 "
            f"0x{0x400000000 + window - 1:016x} 0x0",
            **({} if integrated else {"lmem_total_bytes": str(24 * GIB)}),
            **files,
        }
        for name, value in contents.items():
            (device / name).write_text(f"{value}\n")
        os.symlink(self.root / "sys/bus/pci/drivers/xe", device / "driver")
        (device / "drm" / node / "device").symlink_to(device)
        drm, pci = self.root / "sys/class/drm", self.root / "sys/bus/pci/devices"
        drm.mkdir(parents=True, exist_ok=True)
        pci.mkdir(parents=True, exist_ok=True)
        (drm / node).symlink_to(device / "drm" / node)
        (pci / address).symlink_to(device)
        file = self.write(f"dev/dri/{node}")
        self.write(f"dev/dri/by-path/pci-{address}-render")
        file.chmod(0o666)
        return node

    def device(self, number: int) -> Path:
        """The PCI directory of the n-th card."""
        return (self.root / "sys/class/drm" / f"renderD{128 + number}" / "device").resolve()

    def package(self, name: str, version: str, requires: list[str] | None = None, record: str = "") -> Path:
        """Metadata of an installed distribution; replaces another release of it."""
        site = self.root / SITE
        for old in site.glob(f"{name}-*.dist-info"):
            self.remove(str(old.relative_to(self.root)))
        folder = f"{SITE}/{name}-{version}.dist-info"
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {text}" for text in requires or ()]
        self.write(f"{folder}/METADATA", "\n".join(lines) + "\n\nA description.\n")
        self.write(f"{folder}/RECORD", record)
        return self.root / folder

    def uninstall(self, name: str) -> None:
        """Remove a distribution's metadata."""
        for folder in (self.root / SITE).glob(f"{name}-*.dist-info"):
            self.remove(str(folder.relative_to(self.root)))

    def torch_build(self, version: str, **platforms: str) -> None:
        """`torch/version.py` and metadata of another build."""
        lines = ["from typing import Optional", f"__version__ = {version!r}"]
        lines += [f"{name}: Optional[str] = {platforms.get(name)!r}" for name in ("cuda", "hip", "xpu")]
        self.write(f"{SITE}/torch/version.py", "\n".join(lines) + "\n")
        self.package("torch", version, PACKAGES["torch"][1])

    def libraries(self, folder: str, *names: str) -> None:
        """Empty files that play libraries."""
        for name in names:
            self.write(f"{folder}/{name}")

    # -- the machine ---------------------------------------------------------------------------------------------

    def run(self, argv, seconds, environ) -> Ran:
        """Answers for the child processes of the checks."""
        if argv[1] == "-c":
            return self.hook
        return {"torch_child.py": self.torch, "pidfd_child.py": self.pidfd}[os.path.basename(argv[-1])]

    def connect(self, host: str, port: int, seconds: float) -> None:
        """Answers for connections."""
        if self.unreachable:
            raise ConnectionRefusedError(111, self.unreachable)

    def machine(self, **changes) -> Machine:
        """What the checks get."""
        return Machine(
            **{
                "root": str(self.root),
                "environ": self.environ,
                "python": str(self.root / "opt/env/bin/python"),
                "site": [str(self.root / SITE)],
                "version": self.version,
                "uid": self.uid,
                "groups": self.groups,
                "runner": self.run,
                "space_of": lambda path: self.shm,
                "connector": self.connect,
                **changes,
            }
        )


def healthy(root: Path, cards: int = 2) -> Tree:
    """A machine on which everything is as it should be."""
    tree = Tree(root)
    for name in ("sys/class", "sys/bus/pci/devices", "sys/class/devcoredump", "opt/env/bin", "dev/shm", SITE):
        (root / name).mkdir(parents=True, exist_ok=True)
    for number in range(cards):
        tree.card(f"0000:{3 + number:02x}:00.0")
    tree.write("/etc/group", "root:x:0:\nuser:x:1000:\nrender:x:992:user\n")
    tree.write("/etc/hosts", "127.0.0.1 localhost\n192.168.1.10 node-a\n")
    tree.write("/etc/OpenCL/vendors/intel.icd", "/usr/lib/x86_64-linux-gnu/intel-opencl/libigdrcl.so\n")
    tree.libraries("/usr/lib/x86_64-linux-gnu/intel-opencl", "libigdrcl.so")
    tree.libraries(
        "/usr/lib/x86_64-linux-gnu", "libze_loader.so.1", "libze_intel_gpu.so.1", "libze_intel_gpu.so.1.14.38308"
    )
    tree.libraries("/opt/env/lib", "libsycl.so.9", "libccl.so.1", "libur_loader.so.0")
    tree.write("/proc/version", "Linux version 6.14.0 (gcc)\n")
    tree.write("/proc/sys/kernel/osrelease", "6.14.0-37-generic\n")
    tree.write("/proc/sys/kernel/hostname", "node-a\n")
    tree.write("/proc/1/cgroup", "0::/init.scope\n")
    tree.write("/proc/cpuinfo", "processor : 0\nflags : fpu sse avx2\n")
    tree.write("/proc/meminfo", "MemTotal: 268435456 kB\nMemFree: 100000000 kB\nMemAvailable: 209715200 kB\n")
    tree.write(
        "/proc/self/limits",
        "Limit Soft Hard Units\nMax open files            65536                1048576              files\n",
    )
    tree.write("/proc/net/dev", "Inter-| Receive\n face |bytes\n    lo: 0 0\n  eth0: 0 0\n")
    tree.write("/sys/class/dmi/id/sys_vendor", "Supermicro\n")
    tree.write("/sys/devices/system/node/node0/cpulist", "0-7\n")
    for name, (version, requires) in PACKAGES.items():
        tree.package(name, version, requires, "sitecustomize.py,,\n" if name == "xpu_shim" else "")
    tree.torch_build("2.13.0+xpu", xpu="20260000")
    tree.libraries(f"{SITE}/vllm_xpu_kernels", "__init__.py", "xpumem_allocator.abi3.so")
    for name in ("torchrun", "ray", "vllm"):
        tree.write(f"/opt/env/bin/{name}", "#!/bin/sh\n").chmod(0o755)
    os.symlink(sys.executable, root / "opt/env/bin/python")
    return tree
