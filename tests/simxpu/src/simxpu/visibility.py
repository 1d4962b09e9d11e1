"""Which devices a process sees, in the order it sees them.

The same steps as on a real machine: the Level Zero driver lists the cards (discrete ones first), flattens tiles to
devices if the hierarchy says so, and applies ``ZE_AFFINITY_MASK``; SYCL applies ``ONEAPI_DEVICE_SELECTOR`` to the list
that remains, so its numbers count masked devices; torch drops integrated GPUs if there is a discrete one.

Read from the driver's and the runtime's documentation and behaviour, and written anew here. Pure functions.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .description import Card

HIERARCHIES = ("FLAT", "COMBINED", "COMPOSITE")
_BACKENDS = {"*", "level_zero", "opencl", "cuda", "hip", "native_cpu"}
_KINDS = {"*", "gpu", "cpu", "fpga"}


@dataclass(frozen=True)
class Device:
    """What the driver calls a device: a card, or some of its tiles."""

    card: Card
    tiles: tuple[int, ...]

    @property
    def whole_card(self) -> bool:
        return len(self.tiles) == self.card.model.tiles

    @property
    def uuid(self) -> bytes:
        return self.card.uuid(None if self.whole_card else self.tiles[0])

    @property
    def total_memory(self) -> int:
        return self.card.tile_memory * len(self.tiles)

    @property
    def ordinal_text(self) -> str:
        tiles = "" if self.whole_card else "." + "+".join(map(str, self.tiles))
        return self.card.pci_address + tiles


def hierarchy(env: Mapping[str, str]) -> str:
    """FLAT, COMBINED or COMPOSITE. The driver takes anything else for its default, FLAT."""
    value = env.get("ZE_FLAT_DEVICE_HIERARCHY", "")
    return value if value in HIERARCHIES else "FLAT"


def driver_order(cards: Sequence[Card], env: Mapping[str, str]) -> list[Card]:
    """Cards as the driver numbers them: discrete before integrated, unless PCI order is asked for."""
    by_pci = env.get("ZE_ENABLE_PCI_ID_DEVICE_ORDER", "0") not in ("", "0")
    return sorted(cards, key=lambda c: (not by_pci and c.model.integrated, c.bus, c.slot))


def masked(cards: Sequence[Card], mask: str | None, flat: bool) -> list[Device]:
    """Devices that ZE_AFFINITY_MASK leaves, in the driver's order whatever the order of the mask.

    Args:
        cards: in the driver's order.
        mask: entries ``N`` or ``N.T`` separated by commas; None or empty for no limit. Entries out of range are
        ignored, and so
            are ``N.T`` entries if tiles are devices, which is what the driver does.
        flat: whether each tile is a device.

    Raises:
        RuntimeError: an entry does not start with a number (the driver ends the process).
    """
    slots = [(c, t) for c in range(len(cards)) for t in range(cards[c].model.tiles)]
    if not mask:
        chosen = {c: set(range(card.model.tiles)) for c, card in enumerate(cards)}
    else:
        chosen = {}
        for entry in mask.split(","):
            parts = entry.split(".")
            numbers = [re.match(r"\s*(\d+)", p) for p in parts]
            if not all(numbers):
                raise RuntimeError(
                    f"ZE_AFFINITY_MASK={mask!r}: {entry!r} is not a device number, and the driver ends the "
                    "process on it. Use numbers separated by commas, e.g. 0,1; with "
                    "ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE also tiles, e.g. 0.1."
                )
            first = int(numbers[0][1])
            if first >= (len(slots) if flat else len(cards)):
                continue
            if flat:
                if len(parts) == 1:
                    card, tile = slots[first]
                    chosen.setdefault(card, set()).add(tile)
            elif len(parts) == 1:
                chosen.setdefault(first, set()).update(range(cards[first].model.tiles))
            elif len(parts) == 2 and int(numbers[1][1]) < cards[first].model.tiles:
                chosen.setdefault(first, set()).add(int(numbers[1][1]))
    devices = []
    for c in sorted(chosen):
        tiles = sorted(chosen[c])
        if flat:
            devices += [Device(cards[c], (t,)) for t in tiles]
        elif tiles:
            devices.append(Device(cards[c], tuple(tiles)))
    return devices


def _selector_terms(selector: str) -> list[tuple[bool, str, list[str]]]:
    """(accept, backend, devices) of each term; RuntimeError if the runtime would not read it."""

    def refuse(why: str) -> RuntimeError:
        return RuntimeError(
            f"ONEAPI_DEVICE_SELECTOR parsing error. {why} (ONEAPI_DEVICE_SELECTOR={selector!r}; "
            "expected e.g. level_zero:0,1 or level_zero:gpu)"
        )

    terms = []
    for term in selector.lower().split(";"):
        accept = not term.startswith("!")
        backend, colon, devices = term.lstrip("!").strip().partition(":")
        if not colon:
            raise refuse(f'Backend is required but missing from "{term}"')
        if backend not in _BACKENDS:
            raise refuse(f'"{backend}" is not a backend')
        kinds = devices.split(",")
        for kind in kinds:
            if kind not in _KINDS and not re.fullmatch(r"(\d+|\*)(\.(\d+|\*)){0,2}", kind):
                raise refuse(f'"{kind}" is not a device')
        terms.append((accept, backend, kinds))
    if any(not accept for accept, _, _ in terms) and not any(accept for accept, _, _ in terms):
        terms.insert(0, (True, "*", ["*"]))
    return terms


def selected(devices: Sequence[Device], selector: str | None) -> list[Device]:
    """Level Zero GPUs that ONEAPI_DEVICE_SELECTOR leaves; its numbers are positions in ``devices``.

    Raises:
        RuntimeError: the selector cannot be read.
    """
    if not selector:
        return list(devices)
    chosen: list[Device] = []
    terms = [t for t in _selector_terms(selector) if t[1] in ("*", "level_zero")]

    def matches(kind: str, index: int, device: Device) -> list[Device]:
        if kind in ("*", "gpu"):
            return [device]
        if kind in ("cpu", "fpga"):
            return []
        root, *sub = kind.split(".")
        if root not in ("*", str(index)):
            return []
        if not sub:
            return [device]
        if len(device.tiles) == 1:
            return []  # nothing to divide
        tiles = device.tiles if sub[0] == "*" else device.tiles[int(sub[0]) : int(sub[0]) + 1]
        return [Device(device.card, (t,)) for t in tiles]

    for index, device in enumerate(devices):
        found: list[Device] = []
        for accept, _, kinds in terms:
            for kind in kinds:
                for d in matches(kind, index, device):
                    if accept and d not in found:
                        found.append(d)
                    elif not accept and d in found:
                        found.remove(d)
        chosen += found
    return chosen


def visible(cards: Sequence[Card], env: Mapping[str, str], mask_ignored: bool = False) -> list[Device]:
    """What torch sees, by index.

    Raises:
        RuntimeError: the mask or the selector cannot be read.
    """
    flat = hierarchy(env) != "COMPOSITE"
    mask = None if mask_ignored else env.get("ZE_AFFINITY_MASK")
    devices = selected(masked(driver_order(cards, env), mask, flat), env.get("ONEAPI_DEVICE_SELECTOR"))
    discrete = [d for d in devices if not d.card.model.integrated]
    return discrete or devices
