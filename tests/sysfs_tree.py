"""Cards in a directory laid out as /sys. Every test can import it: tests/conftest.py puts this directory on the path."""

from __future__ import annotations

from pathlib import Path


class Tree:
    """Writes cards into a directory laid out as /sys, with links as the kernel makes them."""

    def __init__(self, root: Path) -> None:
        self.root = root / "sys"
        (self.root / "class" / "drm").mkdir(parents=True)
        self.number = 128

    def card(self, address: str, device_id: int = 0xE211, *, vendor: int = 0x8086, pci_class: int = 0x030000, **files):
        """Add one card; keyword arguments are further files of its PCI directory ("/" written as "__")."""
        node = f"renderD{self.number}"
        self.number += 1
        device = self.root / "devices" / "pci0000:00" / address
        (device / "drm" / node).mkdir(parents=True)
        for name, value in {
            "vendor": f"0x{vendor:04x}",
            "device": f"0x{device_id:04x}",
            "class": f"0x{pci_class:06x}",
            "numa_node": "-1",
            "local_cpulist": "0-7",
            **files,
        }.items():
            path = device / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")
        (device / "drm" / node / "device").symlink_to(device)
        (self.root / "class" / "drm" / node).symlink_to(device / "drm" / node)
        return node
