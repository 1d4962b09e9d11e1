"""A ``/sys`` tree that shows the simulated cards as the kernel's drivers would.

Programs that look for GPUs without loading a driver read ``/sys/class/drm``. They are pointed to this tree by the
environment variable ``XPU_SHIM_SYSFS``. It holds what such programs read, in the kernel's layout::

    class/drm/renderD128 -> ../../devices/pci0000:00/0000:00:01.0/0000:03:00.0/drm/renderD128
    class/drm/card0      -> the same for the card node
    devices/pci0000:00/0000:00:01.0/0000:03:00.0/
        vendor device class revision subsystem_vendor subsystem_device numa_node local_cpulist uevent resource
        driver -> ../../../../bus/pci/drivers/xe        subsystem -> ../../../../bus/pci
        drm/renderD128/{dev,uevent}, drm/renderD128/device -> ../../../0000:03:00.0
    bus/pci/devices/0000:03:00.0 -> the device
"""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from . import settings
from .description import Card, parse

#: The variable that names the root of sysfs for those who read it.
ROOT_VARIABLE = "XPU_SHIM_SYSFS"
#: First minor numbers of the kernel's DRM nodes.
_FIRST_RENDER_NODE = 128
_DRM_MAJOR = 226
#: Part of the directory's name: a tree of another layout is another tree.
_LAYOUT = 1

_MEMORY_BAR, _PREFETCHABLE_64 = 2, 0x14220C
_REGISTER_BAR, _REGISTERS_64 = 0, 0x140204


def tree_for(description: str) -> Path:
    """Root of the tree for a description, created if it is not there yet.

    One directory per user, description and layout below the directory for temporary files, so making it costs
    something once only. Safe when many processes start together: a tree is built aside and moved into place.

    Raises:
        ValueError: the description cannot be read.
    """
    cards = parse(description)
    digest = hashlib.sha256(repr(cards).encode()).hexdigest()[:12]
    parent = Path(tempfile.gettempdir()) / f"simxpu-{os.getuid()}"
    root = parent / f"sysfs-{_LAYOUT}-{digest}"
    if root.is_dir():
        return root
    parent.mkdir(mode=0o700, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix="new-", dir=parent))
    try:
        write_tree(aside, cards)
        os.rename(aside, root)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        if not root.is_dir():  # otherwise another process was faster
            raise
    return root


def export() -> None:
    """Point programs that read sysfs to the tree of SIMXPU_DEVICES, unless the variable is set already."""
    if settings.enabled() and ROOT_VARIABLE not in os.environ:
        os.environ[ROOT_VARIABLE] = str(tree_for(settings.devices()))


def write_tree(root: Path, cards: list[Card]) -> None:
    """Write the tree of the given cards below an empty directory."""
    for folder in ("class/drm", "bus/pci/devices", "bus/pci/drivers"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    _write(root / "class/drm/version", "drm 1.1.0 20060810")
    for index, card in enumerate(cards):
        _write_card(root, card, index)


def _write_card(root: Path, card: Card, index: int) -> None:
    model, address = card.model, card.pci_address
    if card.bus == 0:
        parent = "devices/pci0000:00"
    else:
        domain_bus = 0x80 if card.bus >= 0x80 else 0x00
        parent = f"devices/pci0000:{domain_bus:02x}/0000:{domain_bus:02x}:{1 + index:02x}.0"
    device = root / parent / address
    device.mkdir(parents=True)
    up = "/".join([".."] * (len(Path(parent).parts) + 1))

    first_cpu = 16 * max(card.numa_node, 0)
    for name, value in {
        "vendor": "0x8086",
        "device": f"0x{model.device_id:04x}",
        "class": f"0x{model.pci_class:06x}",
        "revision": "0x00",
        "subsystem_vendor": "0x8086",
        "subsystem_device": "0x1100",
        "numa_node": str(card.numa_node),
        "local_cpulist": f"{first_cpu}-{first_cpu + 15}",
        "enable": "1",
        "boot_vga": str(int(model.integrated)),
        "uevent": "\n".join(
            (
                f"DRIVER={model.driver}",
                f"PCI_CLASS={model.pci_class:X}",
                f"PCI_ID=8086:{model.device_id:04X}",
                "PCI_SUBSYS_ID=8086:1100",
                f"PCI_SLOT_NAME={address}",
                f"MODALIAS=pci:v00008086d{model.device_id:08X}sv00008086sd00001100bc03sc80i00",
            )
        ),
        "resource": _resource(card, index),
    }.items():
        _write(device / name, value)

    driver = root / "bus/pci/drivers" / model.driver
    driver.mkdir(exist_ok=True)
    (device / "driver").symlink_to(f"{up}/bus/pci/drivers/{model.driver}")
    (device / "subsystem").symlink_to(f"{up}/bus/pci")
    (driver / address).symlink_to(f"../../../../{parent}/{address}")
    (root / "bus/pci/devices" / address).symlink_to(f"../../../{parent}/{address}")

    if not model.integrated and model.driver == "xe":
        for tile in range(model.tiles):
            (device / f"tile{tile}").mkdir()
            _write(device / f"tile{tile}/physical_vram_size_bytes", f"0x{card.tile_memory:016x}")
    for node, minor in ((f"card{index}", index), (f"renderD{_FIRST_RENDER_NODE + index}", _FIRST_RENDER_NODE + index)):
        folder = device / "drm" / node
        folder.mkdir(parents=True)
        _write(folder / "dev", f"{_DRM_MAJOR}:{minor}")
        _write(folder / "uevent", f"MAJOR={_DRM_MAJOR}\nMINOR={minor}\nDEVNAME=dri/{node}\nDEVTYPE=drm_minor")
        (folder / "device").symlink_to(f"../../../{address}")
        (folder / "subsystem").symlink_to(f"{up}/../../class/drm")
        (root / "class/drm" / node).symlink_to(f"../../{parent}/{address}/drm/{node}")
    if not model.integrated and model.driver == "i915":
        _write(device / f"drm/card{index}/lmem_total_bytes", str(card.memory))
        for tile in range(model.tiles):
            (device / f"drm/card{index}/gt/gt{tile}").mkdir(parents=True)
            _write(device / f"drm/card{index}/gt/gt{tile}/id", str(tile))


def _resource(card: Card, index: int) -> str:
    """Start, end and flags of each BAR. BAR 2 is as large as the card's memory, up to the next power of two."""
    rows = [(0, 0, 0)] * 13
    base = 0x2000000000 + index * (1 << 40)
    rows[_REGISTER_BAR] = (base, base + (16 << 20) - 1, _REGISTERS_64)
    window = 256 << 20 if card.model.integrated else 1 << (card.memory - 1).bit_length()
    base += 1 << 39
    rows[_MEMORY_BAR] = (base, base + window - 1, _PREFETCHABLE_64)
    return "\n".join(f"0x{start:016x} 0x{end:016x} 0x{flags:016x}" for start, end, flags in rows)


def _write(path: Path, text: str) -> None:
    path.write_text(text + "\n")
