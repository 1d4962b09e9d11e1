"""Who holds memory of a card, read from the kernel: every process that has the card open tells it in its fdinfo.

The keys are those of the kernel's "DRM client usage stats": ``drm-pdev``, ``drm-client-id``, ``drm-total-<region>``
and the older ``drm-memory-<region>``. Regions in device memory are ``vram0``, ``vram1`` … for the xe driver and
``local0`` … for i915, one a tile.
https://docs.kernel.org/gpu/drm-usage-stats.html
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = re.compile(r"(\d+)\s*(KiB|MiB|GiB)?")
_REGION = re.compile(r"drm-(total|resident|memory)-(?:vram|local)(\d+)")


class Holder(NamedTuple):
    """One process that holds memory of a card."""

    pid: int
    #: Its name as the kernel keeps it (15 characters).
    name: str
    #: Device memory in bytes.
    held: int


def holders(address: str, tiles: tuple[int, ...] | None = None, proc: str = "/proc") -> tuple[Holder, ...] | None:
    """The processes that hold memory of the card at a PCI address, largest first.

    Only processes this one may look at are seen: those of other users and outside a container are not.

    Args:
        address: PCI address such as "0000:03:00.0".
        tiles: which of the card's tiles count; None for all.
        proc: where the process file system is mounted.

    Returns:
        None where the kernel driver does not tell (not even of this process): then nothing is known.
    """
    told = False
    found = []
    for pid in _pids(proc):
        clients: dict[str, int] = {}
        for text in _fdinfos(os.path.join(proc, pid, "fdinfo")):
            fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
            if fields.get("drm-pdev", "").strip() != address:
                continue
            held = _held(fields, tiles)
            if held is None:
                continue
            told = True
            # Duplicated file descriptors name the same client: count it once.
            clients[fields.get("drm-client-id", "").strip()] = held
        if sum(clients.values()):
            found.append(Holder(int(pid), _name(proc, pid), sum(clients.values())))
    return tuple(sorted(found, key=lambda holder: (-holder.held, holder.pid))) if told else None


def _held(fields: dict[str, str], tiles: tuple[int, ...] | None) -> int | None:
    """Bytes of device memory one client holds; None if the driver does not tell. Allocated beats resident: memory that
    was evicted to the host comes back.
    """
    sums: dict[str, int] = {}
    for key, value in fields.items():
        match = _REGION.fullmatch(key.strip())
        size = _SIZE.match(value.strip()) if match else None
        if match and size and (tiles is None or int(match[2]) in tiles):
            sums[match[1]] = sums.get(match[1], 0) + int(size[1]) * _UNITS[size[2] or ""]
    return next((sums[kind] for kind in ("total", "memory", "resident") if kind in sums), None)


def _pids(proc: str) -> list[str]:
    try:
        return [name for name in os.listdir(proc) if name.isdigit()]
    except OSError:
        return []


def _fdinfos(folder: str) -> list[str]:
    """Contents of the fdinfo files of open DRM devices in `folder`; those that cannot be read are left out."""
    texts = []
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    for name in names:
        try:
            with open(os.path.join(folder, name), encoding="ascii", errors="replace") as file:
                text = file.read()
        except OSError:
            continue
        if "drm-pdev" in text:
            texts.append(text)
    return texts


def _name(proc: str, pid: str) -> str:
    try:
        with open(os.path.join(proc, pid, "comm"), encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
