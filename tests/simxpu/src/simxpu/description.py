"""What the simulated machine consists of: reads SIMXPU_DEVICES.

Facts about real cards (names, PCI ids, memory, tiles) are in one table here. They are stand-ins: the names and ids are
the public ones, the rest was not compared with hardware.
"""

import re
from dataclasses import dataclass

GIB = 1 << 30


@dataclass(frozen=True)
class Model:
    """A kind of card."""

    key: str  #: how SIMXPU_DEVICES names it
    name: str  #: device name as torch reports it
    device_id: int  #: PCI device id
    tiles: int
    tile_memory: int  #: bytes
    compute_units: int  #: of one tile
    driver: str = "xe"  #: kernel driver
    pci_class: int = 0x030000  #: display controller; 0x038000 for cards without an output
    integrated: bool = False
    architecture: int = 0  #: as in torch's device properties
    has_fp64: bool = True


MODELS = {
    m.key.lower(): m
    for m in (
        Model("B50", "Intel(R) Arc(TM) Pro B50 Graphics", 0xE212, 1, 16 * GIB, 128, architecture=21479031808),
        Model("B60", "Intel(R) Arc(TM) Pro B60 Graphics", 0xE211, 1, 24 * GIB, 160, architecture=21479031808),
        Model("B70", "Intel(R) Arc(TM) Pro B70 Graphics", 0xE223, 1, 32 * GIB, 256, architecture=21483225088),
        Model("B580", "Intel(R) Arc(TM) B580 Graphics", 0xE20B, 1, 12 * GIB, 160, architecture=21479031808),
        Model(
            "A770",
            "Intel(R) Arc(TM) A770 Graphics",
            0x56A0,
            1,
            16 * GIB,
            512,
            driver="i915",
            architecture=13136561920,
            has_fp64=False,
        ),
        Model(
            "Max1100",
            "Intel(R) Data Center GPU Max 1100",
            0x0BDA,
            1,
            48 * GIB,
            448,
            driver="i915",
            pci_class=0x038000,
            architecture=13153337344,
        ),
        Model(
            "Max1550",
            "Intel(R) Data Center GPU Max 1550",
            0x0BD5,
            2,
            64 * GIB,
            512,
            driver="i915",
            pci_class=0x038000,
            architecture=13153337344,
        ),
        Model("iGPU", "Intel(R) Arc(TM) 140V GPU", 0x64A0, 1, 16 * GIB, 64, integrated=True, architecture=20967276544),
    )
}

#: What a bare number counts.
DEFAULT_MODEL = "B60"
#: More than any workstation or node holds.
MAX_CARDS = 16


@dataclass(frozen=True)
class Card:
    """One card of the machine."""

    model: Model
    bus: int  #: PCI bus, 0 for integrated devices
    slot: int  #: PCI device number on the bus
    numa_node: int  #: -1 if the machine has only one
    tile_memory: int  #: bytes

    @property
    def pci_address(self) -> str:
        return f"0000:{self.bus:02x}:{self.slot:02x}.0"

    @property
    def memory(self) -> int:
        """Bytes of all tiles together."""
        return self.tile_memory * self.model.tiles

    def uuid(self, tile: int | None = None) -> bytes:
        """16 bytes in the layout of Intel's driver: vendor, device, revision, PCI address, tile counted from 1."""
        return b"".join(
            (
                (0x8086).to_bytes(2, "little"),
                self.model.device_id.to_bytes(2, "little"),
                (0).to_bytes(2, "little"),  # revision
                (0).to_bytes(2, "little"),  # PCI domain
                bytes((self.bus, self.slot, 0)),
                bytes(4),
                bytes((0 if tile is None else tile + 1,)),
            )
        )


_ELEMENT = re.compile(
    f"(?P<model>{'|'.join(MODELS)})" + r"(?:x(?P<count>\d+))?(?:@(?P<size>[\d.]+)(?P<unit>[kmgt])i?b?)?", re.IGNORECASE
)
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse(description: str) -> list[Card]:
    """The cards of a machine, in PCI order.

    Args:
        description: elements joined by ``+``. An element is a number (of B60 cards) or a model with an optional count
        and an
            optional memory per tile: ``4``, ``B60x4``, ``Max1550x2``, ``iGPU+B60x2``, ``B60x2@512MiB``.

    Raises:
        ValueError: the description cannot be read, or describes no card or too many.
    """

    def refuse(why: str) -> ValueError:
        return ValueError(
            f"SIMXPU_DEVICES={description!r}: {why}. Expected a number of cards or a description such as B60x4, "
            f"Max1550x2, iGPU+B60x2 or B60x2@512MiB; models: {', '.join(m.key for m in MODELS.values())}."
        )

    wanted: list[tuple[Model, int]] = []
    for element in description.replace(" ", "").split("+"):
        # A bare number counts cards of the default model.
        text = re.sub(r"^(\d+)", rf"{DEFAULT_MODEL}x\1", element)
        match = _ELEMENT.fullmatch(text)
        if match is None:
            raise refuse(f"cannot read {element!r}" if element else "an element is empty")
        model = MODELS[match["model"].lower()]
        memory = model.tile_memory
        if match["size"]:
            try:
                memory = int(float(match["size"]) * _UNITS[match["unit"].lower()])
            except ValueError:
                raise refuse(f"{match['size']!r} is not a size") from None
            if memory < 1 << 20:
                raise refuse("a tile needs at least 1MiB")
        count = int(match["count"] or 1)
        if model.integrated and count > 1:
            raise refuse("a machine has at most one integrated GPU")
        wanted += [(model, memory)] * count
    if not wanted:
        raise refuse("no card")
    if len(wanted) > MAX_CARDS:
        raise refuse(f"{len(wanted)} cards, at most {MAX_CARDS} are supported")
    if sum(model.integrated for model, _ in wanted) > 1:
        raise refuse("a machine has at most one integrated GPU")

    discrete = [w for w in wanted if not w[0].integrated]
    desktop = len(discrete) < len(wanted)  # an integrated GPU means one socket
    cards = [Card(model, 0, 2, -1, memory) for model, memory in wanted if model.integrated]
    for i, (model, memory) in enumerate(discrete):
        # Two sockets, the cards split evenly between them; the second socket's buses start at 0x80.
        second = not desktop and len(discrete) > 1 and i >= (len(discrete) + 1) // 2
        position = i - (len(discrete) + 1) // 2 if second else i
        bus = (0x83 if second else 0x03) + 4 * position
        cards.append(Card(model, bus, 0, -1 if desktop else int(second), memory))
    return sorted(cards, key=lambda c: (c.bus, c.slot))
