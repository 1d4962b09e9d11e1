"""Which devices a process sees: the algebra of masks and selectors, as pure functions of strings and cards.

Three things narrow what the runtime reports, in this order:

1. ``ZE_FLAT_DEVICE_HIERARCHY`` says what a device is: each tile (FLAT, the default, and COMBINED) or each card
   (COMPOSITE).
2. ``ZE_AFFINITY_MASK`` keeps some of them. The order of its entries means nothing: what is left keeps the driver's
   order and is numbered from 0.
   https://oneapi-src.github.io/level-zero-spec/level-zero/latest/core/PROG.html#affinity-mask
3. ``ONEAPI_DEVICE_SELECTOR`` picks among those, by the new numbers.
   https://intel.github.io/llvm/EnvironmentVariables.html#oneapi-device-selector

torch then drops integrated GPUs whenever a discrete one is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MASK = "ZE_AFFINITY_MASK"
SELECTOR = "ONEAPI_DEVICE_SELECTOR"
HIERARCHY = "ZE_FLAT_DEVICE_HIERARCHY"

FLAT, COMPOSITE, COMBINED = "FLAT", "COMPOSITE", "COMBINED"

#: Cards assumed where sysfs shows none (a container without it): entries beyond the real ones have no effect.
UNKNOWN_MACHINE = 16

BACKENDS = ("*", "level_zero", "opencl", "cuda", "hip", "esimd_emulator", "native_cpu")

ALLOWED_MASK = {
    FLAT: "comma-separated device ordinals such as 0,1",
    COMPOSITE: "comma-separated card or card.tile ordinals such as 0,1 or 0.0,1.1",
}
ALLOWED_SELECTOR = (
    "backend:devices terms separated by semicolons, such as level_zero:0,1 or level_zero:gpu or *:gpu;!level_zero:2"
)


class VisibilityError(ValueError):
    """A mask, selector or hierarchy that is malformed or leaves no device; names variable, value, what is allowed."""


class Card(NamedTuple):
    """What the algebra needs to know of one GPU card."""

    tiles: int = 1
    discrete: bool = True


class Device(NamedTuple):
    """One device as Level Zero reports it."""

    #: What a mask calls it: the position among all devices of the machine, before any mask.
    ordinal: int
    #: Position of its card in the machine.
    card: int
    #: The tiles of that card that belong to it.
    tiles: tuple[int, ...]
    discrete: bool


def parse_hierarchy(value: str | None) -> str:
    """FLAT, COMPOSITE or COMBINED; FLAT if unset or empty.

    Raises:
        VisibilityError: for any other value; the driver would ignore it silently.
    """
    if not value:
        return FLAT
    if value in (FLAT, COMPOSITE, COMBINED):
        return value
    raise VisibilityError(f"{HIERARCHY}={value!r} is not known. Allowed are FLAT, COMPOSITE and COMBINED.")


def parse_mask(mask: str | None, hierarchy: str = FLAT) -> tuple[tuple[int, int | None], ...] | None:
    """Entries of a mask as (device or card, tile or None), each once, in the order written.

    None means no restriction: the variable is unset, empty, or "default" (the driver's own word for it).

    Raises:
        VisibilityError: for an entry that is not an ordinal, or that names a tile where tiles are devices already (the
            driver skips such entries silently and reports no device at all if none is left).
    """
    if mask is None or not mask.strip() or mask.strip() == "default":
        return None
    style = COMPOSITE if hierarchy == COMPOSITE else FLAT
    entries: dict[tuple[int, int | None], None] = {}
    for text in mask.split(","):
        head, dot, tail = text.strip().partition(".")
        if not _is_ordinal(head) or (dot and (style == FLAT or not _is_ordinal(tail))):
            hint = f" (with {HIERARCHY}={hierarchy})"
            if dot and style == FLAT and _is_ordinal(tail):
                hint += f"; card.tile needs {HIERARCHY}=COMPOSITE"
            raise VisibilityError(
                f"{MASK}={mask!r}: entry {text!r} is not allowed. Allowed: {ALLOWED_MASK[style]}{hint}."
            )
        entries[int(head), int(tail) if dot else None] = None
    return tuple(entries)


def all_devices(cards: Sequence[Card], hierarchy: str = FLAT) -> tuple[Device, ...]:
    """Every device Level Zero reports without a mask, in the driver's order."""
    if hierarchy == COMPOSITE:
        return tuple(Device(n, n, tuple(range(card.tiles)), card.discrete) for n, card in enumerate(cards))
    tiles = [(n, tile, card.discrete) for n, card in enumerate(cards) for tile in range(card.tiles)]
    return tuple(Device(ordinal, n, (tile,), discrete) for ordinal, (n, tile, discrete) in enumerate(tiles))


def visible_devices(mask: str | None, cards: Sequence[Card], hierarchy: str = FLAT) -> tuple[Device, ...]:
    """The devices Level Zero reports under `mask`, in the driver's order; entries beyond the machine are skipped.

    Raises:
        VisibilityError: if the mask is malformed (see :func:`parse_mask`).
    """
    entries = parse_mask(mask, hierarchy)
    devices = all_devices(cards, hierarchy)
    if entries is None:
        return devices
    kept = []
    for device in devices:
        tiles = {tile for ordinal, tile in entries if ordinal == device.ordinal}
        if None in tiles:
            kept.append(device)
        elif chosen := tuple(tile for tile in device.tiles if tile in tiles):
            kept.append(device._replace(tiles=chosen))
    return tuple(kept)


def training_devices(devices: Iterable[Device]) -> tuple[Device, ...]:
    """What ``torch.xpu`` numbers: the discrete devices, or the integrated ones where there is no discrete one.

    The position in the result is the torch index.
    """
    devices = tuple(devices)
    return tuple(device for device in devices if device.discrete) or devices


def select(selector: str, devices: Sequence[Device], hierarchy: str = FLAT) -> tuple[Device, ...]:
    """The Level Zero GPUs among `devices` that an ``ONEAPI_DEVICE_SELECTOR`` leaves, numbered as `devices` are.

    A list of bare numbers ("0,1"), which some launchers export and SYCL refuses, is read as "level_zero:0,1".

    Raises:
        VisibilityError: if the selector does not follow the documented grammar.
    """
    accepted: dict[Device, None] = {}
    discarded: set[Device] = set()
    terms = _selector_terms(selector)
    if terms and terms[0][0]:  # only discarding filters: everything is accepted first
        accepted = dict.fromkeys(devices)
    seen_discard = False
    for discard, backend, names in terms:
        if seen_discard and not discard:
            raise _bad_selector(selector, "discarding terms (!) must come last")
        seen_discard = seen_discard or discard
        matched = [device for name in names for device in _match(selector, name, devices, hierarchy)]
        if backend in ("*", "level_zero"):
            if discard:
                discarded.update(matched)
            else:
                accepted.update(dict.fromkeys(matched))
    kept = _merge_tiles(device for device in accepted if device not in discarded)
    return tuple(sorted(kept, key=lambda device: device.ordinal))


def mask_of(devices: Iterable[Device], cards: Sequence[Card], hierarchy: str = FLAT) -> str:
    """The mask that leaves exactly `devices`."""
    parts = []
    for device in devices:
        if hierarchy != COMPOSITE or len(device.tiles) == cards[device.card].tiles:
            parts.append(str(device.ordinal))
        else:
            parts += [f"{device.ordinal}.{tile}" for tile in device.tiles]
    return ",".join(parts)


def merge_selector(mask: str | None, selector: str, cards: Sequence[Card], hierarchy: str = FLAT) -> str | None:
    """One mask that restricts as `mask` and `selector` do together; None where they restrict nothing.

    Raises:
        VisibilityError: if either is malformed or if together they leave no GPU.
    """
    known = bool(cards)
    cards = cards or (Card(),) * UNKNOWN_MACHINE
    before = visible_devices(mask, cards, hierarchy)
    after = select(selector, before, hierarchy)
    if not after:
        masked = "" if mask is None else f" after {MASK}={mask!r} has numbered {len(before)} device(s) from 0"
        raise VisibilityError(
            f"{SELECTOR}={selector!r} leaves no Level Zero GPU{masked}"
            f"{f'; this machine has {len(all_devices(cards, hierarchy))}' if known else ''}. "
            f"Unset {SELECTOR} and restrict with {MASK} alone, for example {MASK}=0."
        )
    if after == before:
        return mask
    return mask_of(after, cards, hierarchy)


def position(
    assigned: str, count: int, masks: Iterable[str | None], cards: Sequence[Card], hierarchy: str = FLAT
) -> int:
    """The torch index of the device that a scheduler calls `assigned`, in a process where torch sees `count` devices.

    Which mask the runtime really applied cannot be asked: it may have honoured the one that is set now, have frozen an
    earlier one, or ignored all. The masks are tried in the order given (None: no mask), and the first that explains
    `count` and contains `assigned` decides.

    Args:
        assigned: ordinal, or "card.tile" in COMPOSITE, as a mask would name it.
        count: ``torch.xpu.device_count()``.
        masks: the masks this process has had, newest first.

    Raises:
        VisibilityError: if no mask explains what is seen.
    """
    (wanted,) = parse_mask(assigned, hierarchy) or ((-1, None),)
    tried = []
    for mask in dict.fromkeys([*masks, None]):
        devices = training_devices(visible_devices(mask, cards, hierarchy))
        tried.append(f"{'no mask' if mask is None else mask} -> {len(devices)}")
        if len(devices) != count:
            continue
        for index, device in enumerate(devices):
            if device.ordinal == wanted[0] and (wanted[1] is None or wanted[1] in device.tiles):
                return index
    raise VisibilityError(
        f"the scheduler assigned GPU {assigned!r}, but this process sees {count} device(s), and none of the masks it "
        f"has had explains that and contains the GPU ({'; '.join(tried)}). Start Ray on this node with the same {MASK} "
        f"as the training command, or with none."
    )


def _selector_terms(selector: str) -> list[tuple[bool, str, list[str]]]:
    """(discards, backend, device names) of each term, in lower case."""
    text = selector.strip().lower()
    if text and all(_is_ordinal(part.strip()) for part in text.split(",")):
        text = f"level_zero:{text}"
    terms = []
    for term in text.split(";"):
        discard = term.strip().startswith("!")
        body = term.strip().removeprefix("!").strip()
        backend, colon, names = body.partition(":")
        if not colon or ":" in names or backend.strip() not in BACKENDS:
            raise _bad_selector(selector, f"term {term!r}")
        terms.append((discard, backend.strip(), [name.strip() for name in names.split(",")]))
    return terms


def _match(selector: str, name: str, devices: Sequence[Device], hierarchy: str) -> list[Device]:
    if name in ("*", "gpu"):
        return list(devices)
    if name in ("cpu", "fpga"):
        return []
    head, *subs = name.split(".")
    if len(subs) > 2 or not all(part == "*" or _is_ordinal(part) for part in (head, *subs)):
        raise _bad_selector(selector, f"device {name!r}")
    matched = list(devices) if head == "*" else [devices[int(head)]] if int(head) < len(devices) else []
    if not subs:
        return matched
    if hierarchy != COMPOSITE:
        return []  # a tile has no tiles: nothing to partition
    wanted = subs[0]
    return [
        device._replace(tiles=(tile,))
        for device in matched
        for number, tile in enumerate(device.tiles)
        if len(device.tiles) > 1 and wanted in ("*", str(number))
    ]


def _merge_tiles(devices: Iterable[Device]) -> list[Device]:
    """One device a card: a mask cannot split a card into several devices, it only drops tiles."""
    merged: dict[int, Device] = {}
    for device in devices:
        known = merged.get(device.ordinal)
        tiles = {*device.tiles, *(known.tiles if known else ())}
        merged[device.ordinal] = device._replace(tiles=tuple(sorted(tiles)))
    return list(merged.values())


def _bad_selector(selector: str, what: str) -> VisibilityError:
    return VisibilityError(
        f"{SELECTOR}={selector!r}: {what} is not allowed. Allowed: {ALLOWED_SELECTOR}. "
        f"Better: unset {SELECTOR} and restrict with {MASK}."
    )


def _is_ordinal(text: str) -> bool:
    return text.isascii() and text.isdigit()
