"""This machine and this process's masks, as the algebra of `xpu_shim.intel.visibility` wants them."""

from __future__ import annotations

import os
from typing import NamedTuple

from xpu_shim.intel.devices import IntelGpu, intel_gpus
from xpu_shim.intel.visibility import (
    HIERARCHY,
    MASK,
    SELECTOR,
    Card,
    Device,
    merge_selector,
    parse_hierarchy,
    parse_mask,
    training_devices,
    visible_devices,
)

#: Masks this process has had besides the one in its environment now, oldest first. The runtime may have frozen any.
_earlier: list[str | None] = []


class Machine(NamedTuple):
    """The cards of a machine and what counts as a device on it."""

    gpus: tuple[IntelGpu, ...]
    cards: tuple[Card, ...]
    hierarchy: str

    def devices(self, mask: str | None) -> tuple[Device, ...]:
        """The devices torch numbers under `mask`; the position is the torch index.

        Raises:
            xpu_shim.intel.visibility.VisibilityError: if the mask is malformed.
        """
        return training_devices(visible_devices(mask, self.cards, self.hierarchy))


def machine(count: int = 0) -> Machine:
    """The machine as sysfs shows it; where sysfs shows no Intel GPU, `count` cards of one tile are assumed, or as many
    as the masks of this process name.

    Raises:
        xpu_shim.intel.visibility.VisibilityError: if the hierarchy or a mask is malformed.
    """
    hierarchy = parse_hierarchy(os.environ.get(HIERARCHY))
    gpus = intel_gpus()
    cards = tuple(Card(gpu.tiles, gpu.discrete) for gpu in gpus)
    if not cards:
        named = [ordinal + 1 for mask in masks() for ordinal, _ in parse_mask(mask, hierarchy) or ()]
        cards = (Card(),) * max([count, *named])
    return Machine(gpus, cards, hierarchy)


def masks() -> tuple[str | None, ...]:
    """The masks this process has had, newest first; None where there was none."""
    return tuple(dict.fromkeys([os.environ.get(MASK), *reversed(_earlier)]))


def remember_mask() -> None:
    """Note the mask of this moment, before something changes it."""
    mask = os.environ.get(MASK)
    if mask not in _earlier:
        _earlier.append(mask)


def check_selector() -> None:
    """Complain about an ``ONEAPI_DEVICE_SELECTOR`` that could not be turned into a mask when the process started.

    Raises:
        xpu_shim.intel.visibility.VisibilityError: if the selector is malformed or leaves no GPU.
    """
    selector = os.environ.get(SELECTOR)
    if selector is not None:
        here = machine()
        merge_selector(os.environ.get(MASK), selector, here.cards, here.hierarchy)


def allowed_mask() -> str | None:
    """The mask the user started this process with: the oldest known one."""
    return _earlier[0] if _earlier else os.environ.get(MASK)


def allowed_devices() -> tuple[Device, ...]:
    """The devices the user allows this process, in the order of their torch indices under that mask.

    Raises:
        xpu_shim.intel.visibility.VisibilityError: if the mask is malformed or leaves none of the machine's devices.
    """
    from xpu_shim.intel.visibility import VisibilityError

    here = machine()
    devices = here.devices(allowed_mask())
    if here.gpus and not devices:
        raise VisibilityError(
            f"{MASK}={allowed_mask()!r} leaves no GPU: this machine has {len(here.devices(None))} device(s), numbered "
            f"from 0 ({HIERARCHY}={here.hierarchy}). Use ordinals below that number, or unset {MASK}."
        )
    return devices
