"""What several checks need to know of a machine, worked out from its files with the functions of `xpu_shim.intel`."""

from __future__ import annotations

import ast
import json
import os
import re
from typing import Any, NamedTuple

from xpu_shim.core.versions import release
from xpu_shim.doctor.machine import CouldNotLook, Machine
from xpu_shim.intel.devices import INTEL, IntelGpu
from xpu_shim.intel.environment import BATTLEMAGE
from xpu_shim.intel.stack import DRIVER_FOLDERS
from xpu_shim.intel.visibility import (
    HIERARCHY,
    MASK,
    Card,
    Device,
    parse_hierarchy,
    training_devices,
    visible_devices,
)

GIB = 1 << 30

#: Memory of cards whose kernel driver does not report it, by PCI device id.
KNOWN_MEMORY = {0xE211: 24 * GIB, 0x0BD5: 128 * GIB, 0x0BDA: 48 * GIB}

#: PCI device ids of the Data Center GPU Max family.
DATA_CENTER_MAX = range(0x0B69, 0x0BE6)


class TorchBuild(NamedTuple):
    """What `torch/version.py` says; None where that platform is absent."""

    version: str
    xpu: str | None
    cuda: str | None
    hip: str | None


def torch_build(machine: Machine) -> TorchBuild | None:
    """The build of the installed torch, read from its file and not imported; None if torch is not installed.

    Raises:
        CouldNotLook: if the file is there and cannot be read as torch writes it.
    """
    path = machine.module("torch", "version.py")
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError) as error:
        raise CouldNotLook(f"{path}: {error}") from error
    values: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Constant):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    values[target.id] = node.value.value
    version = values.get("__version__")
    if not isinstance(version, str):
        raise CouldNotLook(f"{path} names no version")
    return TorchBuild(version, values.get("xpu"), values.get("cuda"), values.get("hip"))


def xpu_build(machine: Machine) -> TorchBuild | None:
    """The installed torch if it is an XPU build, else None."""
    build = torch_build(machine)
    return build if build is not None and build.xpu else None


def number(version: str | None) -> tuple[int, ...]:
    """Release numbers of a version; empty for none or a text that is not a version."""
    try:
        return release(version or "")
    except ValueError:
        return ()


def visible(machine: Machine) -> tuple[Device, ...]:
    """The devices torch will number here, under mask and hierarchy.

    Raises:
        xpu_shim.intel.visibility.VisibilityError: if either is malformed.
    """
    hierarchy = parse_hierarchy(machine.environ.get(HIERARCHY))
    cards = [Card(gpu.tiles, gpu.discrete) for gpu in machine.gpus]
    return training_devices(visible_devices(machine.environ.get(MASK), cards, hierarchy))


def visible_cards(machine: Machine) -> tuple[IntelGpu, ...]:
    """The cards behind `visible`, each once."""
    return tuple(machine.gpus[index] for index in dict.fromkeys(device.card for device in visible(machine)))


def battlemage(machine: Machine) -> tuple[IntelGpu, ...]:
    """The Arc B and Arc Pro B cards."""
    return tuple(gpu for gpu in machine.cards if gpu.device_id in BATTLEMAGE)


def describe(gpu: IntelGpu) -> str:
    """A card in a line: "renderD128 8086:e211 at 0000:03:00.0 (xe)"."""
    where = f" at {gpu.address}" if gpu.address else ""
    return f"{gpu.node} 8086:{gpu.device_id:04x}{where}" + (f" ({gpu.driver})" if gpu.driver else "")


def bar_size(machine: Machine, gpu: IntelGpu) -> int | None:
    """Size of the largest PCI memory window of a card in bytes; None if sysfs does not tell."""
    text = machine.read(f"/sys/class/drm/{gpu.node}/device/resource")
    sizes = []
    for line in (text or "").splitlines():
        fields = line.split()
        if len(fields) == 3 and int(fields[1], 16):
            sizes.append(int(fields[1], 16) - int(fields[0], 16) + 1)
    return max(sizes, default=None)


def memory_of(machine: Machine, gpu: IntelGpu) -> int | None:
    """Memory of a card in bytes, or None if neither the kernel driver, its PCI window nor its id tells."""
    device = f"/sys/class/drm/{gpu.node}/device"
    total = machine.read(f"{device}/lmem_total_bytes")
    if total and total.isdigit():
        return int(total)
    tiles = [machine.read(f"{device}/tile{tile}/physical_vram_size_bytes") for tile in range(gpu.tiles)]
    if all(tiles):
        return sum(int(tile or "0", 0) for tile in tiles)
    window = bar_size(machine, gpu)
    if window and window >= 2 * GIB:
        return window
    return KNOWN_MEMORY.get(gpu.device_id)


def intel_display_devices(machine: Machine) -> dict[str, int]:
    """PCI address to device id of Intel display controllers, whether a driver is bound to them or not.

    Raises:
        CouldNotLook: if the PCI bus cannot be read.
    """
    names = machine.listdir("/sys/bus/pci/devices")
    if names is None:
        raise CouldNotLook("/sys/bus/pci/devices does not exist")
    found = {}
    for name in names:
        folder = f"/sys/bus/pci/devices/{name}"
        if _hexadecimal(machine.read(f"{folder}/vendor")) != INTEL:
            continue
        if _hexadecimal(machine.read(f"{folder}/class")) >> 16 == 0x03:
            found[name] = _hexadecimal(machine.read(f"{folder}/device"))
    return found


def _hexadecimal(text: str | None) -> int:
    try:
        return int(text or "", 16)
    except ValueError:
        return 0


def level_zero_drivers(machine: Machine) -> dict[str, str]:
    """Path to version of every Level Zero GPU driver in the system's library folders.

    Raises:
        CouldNotLook: if one of the folders cannot be listed.
    """
    found: dict[str, str] = {}
    seen = set()
    for folder in (*DRIVER_FOLDERS, "/usr/lib/x86_64-linux-gnu/intel-opencl"):
        for name in machine.listdir(folder) or ():
            match = re.fullmatch(r"libze_intel_gpu\.so\.(\d+\.\d+\.\d+.*)", name)
            if match:
                real = os.path.realpath(machine.path(os.path.join(folder, name)))
                if real not in seen:  # /lib is /usr/lib on merged systems
                    seen.add(real)
                    found[os.path.join(folder, name)] = match[1]
    return found


def driver_build(machine: Machine) -> int | None:
    """Build number of the Level Zero driver, 38308 for "1.14.38308"; None if no driver is found."""
    builds = [number(version) for version in level_zero_drivers(machine).values()]
    return max((parts[2] for parts in builds if len(parts) >= 3), default=None)


def library_path(machine: Machine) -> list[str]:
    """The directories of LD_LIBRARY_PATH."""
    return [folder for folder in machine.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]


def find_library(machine: Machine, prefix: str, folders: list[str]) -> list[str]:
    """Files whose name begins with `prefix` in `folders`, in that order; unreadable folders raise CouldNotLook."""
    return [
        os.path.join(folder, name)
        for folder in folders
        for name in machine.listdir(folder) or ()
        if name.startswith(prefix)
    ]


def wheel_folders(machine: Machine) -> list[str]:
    """Where wheels of the oneAPI runtime put their libraries: `lib` of the environment and `torch/lib`."""
    folders = []
    for site in machine.site:
        if os.path.basename(site.rstrip("/")) in ("site-packages", "dist-packages"):
            folders.append(os.path.dirname(os.path.dirname(site.rstrip("/"))))
            folders.append(os.path.join(site, "torch", "lib"))
    return list(dict.fromkeys(folders))


def in_distributed_run(machine: Machine) -> bool:
    """Whether the environment is one of a run over several nodes, as far as it tells."""
    world = machine.environ.get("WORLD_SIZE", "")
    local = machine.environ.get("LOCAL_WORLD_SIZE", "")
    if world.isdigit() and local.isdigit() and int(world) > int(local):
        return True
    nodes = next((machine.environ[name] for name in ("NNODES", "SLURM_NNODES") if name in machine.environ), "")
    if nodes.isdigit():
        return int(nodes) > 1
    address = machine.environ.get("RAY_ADDRESS", "")
    return bool(address) and address not in ("local", "auto") and not re.search(r"localhost|127\.0\.0\.1", address)


def torch_child(machine: Machine) -> dict[str, Any]:
    """What a child process found out by importing torch and counting devices; run once a machine.

    Keys: `stage` (the last one that was begun: start, import, count, done), `status` (None at the time limit),
    `problem` (last lines of its error output), and what `torch_child.py` prints.
    """
    return machine.once("torch child", lambda: _torch_child(machine))


def _torch_child(machine: Machine) -> dict[str, Any]:
    script = os.path.join(os.path.dirname(__file__), "torch_child.py")
    ran = machine.run([machine.python, script])
    answer: dict[str, Any] = {"stage": "start", "status": ran.status, "problem": last_lines(ran.err)}
    for line in ran.out.splitlines():
        if line.startswith("{"):
            try:
                answer.update(json.loads(line))
            except ValueError:
                continue
    return answer


def last_lines(text: str, count: int = 3) -> str:
    """The last lines of an error output, where the message is."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-count:])[-600:]


def ended(status: int | None, limit: float) -> str:
    """How a child ended, in words."""
    if status is None:
        return f"it did not end within {limit:g} s"
    if status < 0:
        import signal

        try:
            return f"it was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"it was killed by signal {-status}"
    return f"it ended with status {status}"
