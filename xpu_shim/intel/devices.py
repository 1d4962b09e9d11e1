"""The Intel GPUs of this machine, read from sysfs.

Neither torch nor Level Zero is touched: asking either of them initialises the driver, and from then on the driver
ignores every change of ``ZE_AFFINITY_MASK`` (https://github.com/intel/torch-xpu-ops/issues/2089).

``XPU_SHIM_SYSFS`` names another root than ``/sys``; the simulated device writes such a tree.
"""

from __future__ import annotations

import os
from typing import NamedTuple

INTEL = 0x8086

#: PCI device ids of the discrete families, inclusive ranges (Linux kernel, include/drm/intel/pciids.h). Needed because
#: a discrete card that is passed through to a virtual machine can sit at the address of an integrated GPU.
DISCRETE_IDS = (
    (0x0B69, 0x0BE5),  # Data Center GPU Max
    (0x4905, 0x4909),  # Iris Xe MAX, server GPU SG1
    (0x4F80, 0x4F88),  # Arc A, engineering samples
    (0x5690, 0x56C2),  # Arc A, Arc Pro A, Data Center GPU Flex
    (0xE200, 0xE2FF),  # Arc B, Arc Pro B
)

#: Cards of two tiles, for kernel drivers that do not list tiles (Data Center GPU Max 1350, 1450, 1550).
TWO_TILES = (0x0B69, 0x0BD5, 0x0BD6, 0x0BD7, 0x0BD8)

#: PCI base class "display controller". An NPU is a processing accelerator (0x12) and has no DRM render node.
DISPLAY_CLASS = 0x03


class IntelGpu(NamedTuple):
    """One Intel GPU: a card, not a tile of it."""

    #: DRM render node, "renderD128".
    node: str
    #: PCI address, "0000:03:00.0"; empty if sysfs does not tell.
    address: str
    #: PCI device id, 0xe211 for Arc Pro B60; 0 if sysfs does not tell.
    device_id: int
    #: A card with memory of its own; False for the GPU inside a CPU.
    discrete: bool
    #: NUMA node next to the card; None on machines with one node or when the firmware does not say.
    numa_node: int | None
    #: CPUs next to the card in the kernel's list format, "0-15,64-79"; empty if unknown.
    local_cpus: str
    #: Tiles (stacks), as the kernel driver lists them or as the model has.
    tiles: int
    #: Kernel driver, "xe" or "i915"; empty if unknown.
    driver: str


def sysfs_root() -> str:
    """Directory that is read in place of ``/sys``."""
    return os.environ.get("XPU_SHIM_SYSFS") or "/sys"


def intel_gpus(root: str | None = None) -> tuple[IntelGpu, ...]:
    """The usable Intel GPUs in the order in which Level Zero numbers them.

    That is discrete ones first and then by PCI address, or by PCI address alone with
    ``ZE_ENABLE_PCI_ID_DEVICE_ORDER=1`` (compute-runtime, ``ExecutionEnvironment::comparePciIdBusNumber``).
    A card counts when it has a render node that this process could open: in a container sysfs shows every card of the
    host, ``/dev/dri`` only those that were handed in. Unreadable or absent files never raise; they leave a field empty.
    """
    root = root or sysfs_root()
    drm = os.path.join(root, "class", "drm")
    gpus = [gpu for node in _listdir(drm) if node.startswith("renderD") and (gpu := _read_gpu(root, drm, node))]
    by_address_alone = os.environ.get("ZE_ENABLE_PCI_ID_DEVICE_ORDER") == "1"
    return tuple(
        sorted(
            gpus,
            key=lambda gpu: (not gpu.discrete and not by_address_alone, _address_key(gpu.address), gpu.node),
        )
    )


def discrete_gpus(root: str | None = None) -> tuple[IntelGpu, ...]:
    """The discrete ones of :func:`intel_gpus`: what training is placed on."""
    return tuple(gpu for gpu in intel_gpus(root) if gpu.discrete)


def has_discrete_gpu() -> bool:
    """Whether this machine has a discrete Intel GPU this process can use. Never raises."""
    return bool(discrete_gpus())


def _read_gpu(root: str, drm: str, node: str) -> IntelGpu | None:
    device = os.path.join(drm, node, "device")
    if _hexadecimal(_read(device, "vendor")) != INTEL:
        return None
    pci_class = _hexadecimal(_read(device, "class"))
    if pci_class and pci_class >> 16 != DISPLAY_CLASS:
        return None
    if not _has_device_file(root, node):
        return None
    address = _address(device)
    device_id = _hexadecimal(_read(device, "device"))
    numa_node = _integer(_read(device, "numa_node"))
    return IntelGpu(
        node=node,
        address=address,
        device_id=device_id,
        discrete=_is_discrete(device, device_id, address),
        numa_node=numa_node if numa_node is not None and numa_node >= 0 else None,
        local_cpus=_read(device, "local_cpulist"),
        tiles=_tiles(device, device_id),
        driver=_link_name(device, "driver"),
    )


def _tiles(device: str, device_id: int) -> int:
    listed = sum(1 for name in _listdir(device) if name.startswith("tile") and name[4:].isdigit())
    return listed or (2 if device_id in TWO_TILES else 1)


def _is_discrete(device: str, device_id: int, address: str) -> bool:
    if any(first <= device_id <= last for first, last in DISCRETE_IDS):
        return True
    # The xe and i915 drivers report local memory for cards newer than the table above.
    if _read(device, "lmem_total_bytes") or _read(device, "tile0/physical_vram_size_bytes"):
        return True
    # The GPU inside an Intel CPU is always device 2 of the root bus; its virtual functions follow it there.
    return bool(address) and not address.partition(":")[2].startswith("00:02.")


def _has_device_file(root: str, node: str) -> bool:
    # "/sys/../dev/dri" on a real machine. A tree made for a test may have no device files: then sysfs alone counts.
    dri = os.path.join(os.path.dirname(os.path.abspath(root)), "dev", "dri")
    if os.path.abspath(root) != "/sys" and not os.path.isdir(dri):
        return True
    return os.path.exists(os.path.join(dri, node))


def _address(device: str) -> str:
    name = os.path.basename(os.path.realpath(device))
    if name.count(":") == 2:
        return name
    for line in _read(device, "uevent").splitlines():
        if line.startswith("PCI_SLOT_NAME="):
            return line.partition("=")[2].strip()
    return ""


def _address_key(address: str) -> tuple[int, ...]:
    """(domain, bus, device, function), so that domain 10000 does not sort before domain 2000."""
    try:
        domain, bus, rest = address.split(":")
        slot, _, function = rest.partition(".")
        return int(domain, 16), int(bus, 16), int(slot, 16), int(function or "0", 16)
    except ValueError:
        return (1 << 32,)


def _read(*path: str) -> str:
    try:
        with open(os.path.join(*path), encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _listdir(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _link_name(*path: str) -> str:
    try:
        return os.path.basename(os.readlink(os.path.join(*path)))
    except OSError:
        return ""


def _hexadecimal(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0


def _integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
