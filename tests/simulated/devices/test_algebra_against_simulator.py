"""Two readings of the same documents agree: the shim's mask and selector algebra, and the simulator's."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simxpu import description, sysfs
from simxpu import visibility as simulated

from xpu_shim.intel.devices import intel_gpus
from xpu_shim.intel.visibility import Card, all_devices, merge_selector, training_devices, visible_devices

MACHINES = ("B60x4", "1", "Max1550x2", "iGPU+B60x2", "iGPU", "iGPU+Max1550x2")


def ours(machine, mask, selector, hierarchy, monkeypatch_root):
    """(PCI address, tiles) of every device torch would number, by the shim."""
    gpus = intel_gpus(monkeypatch_root)
    cards = [Card(gpu.tiles, gpu.discrete) for gpu in gpus]
    if selector is not None:
        mask = merge_selector(mask, selector, cards, hierarchy)
    devices = training_devices(visible_devices(mask, cards, hierarchy))
    return [(gpus[device.card].address, device.tiles) for device in devices]


def theirs(machine, mask, selector, hierarchy):
    """The same, by the simulator."""
    env = {"ZE_FLAT_DEVICE_HIERARCHY": hierarchy}
    if mask is not None:
        env["ZE_AFFINITY_MASK"] = mask
    if selector is not None:
        env["ONEAPI_DEVICE_SELECTOR"] = selector
    devices = simulated.visible(description.parse(machine), env)
    return [(device.card.pci_address, tuple(sorted(device.tiles))) for device in devices]


@pytest.mark.parametrize("machine", MACHINES)
def test_sysfs_shows_the_machine_that_was_described(machine):
    gpus = intel_gpus(str(sysfs.tree_for(machine)))
    cards = simulated.driver_order(description.parse(machine), {})
    assert [(gpu.address, gpu.tiles, gpu.discrete) for gpu in gpus] == [
        (card.pci_address, card.model.tiles, not card.model.integrated) for card in cards
    ]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(MACHINES), st.sampled_from(["FLAT", "COMPOSITE"]), st.data())
def test_masks_leave_the_same_devices(machine, hierarchy, data):
    root = str(sysfs.tree_for(machine))
    cards = [Card(gpu.tiles, gpu.discrete) for gpu in intel_gpus(root)]
    names = [
        name
        for device in all_devices(cards, hierarchy)
        for name in [
            str(device.ordinal),
            *(f"{device.ordinal}.{tile}" for tile in device.tiles if hierarchy == "COMPOSITE"),
        ]
    ]
    mask = data.draw(st.none() | st.lists(st.sampled_from([*names, "9"]), min_size=1, max_size=5).map(",".join))
    assert ours(machine, mask, None, hierarchy, root) == theirs(machine, mask, None, hierarchy)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["B60x4", "iGPU+B60x2"]), st.data())
def test_selectors_leave_the_same_devices(machine, data):
    root = str(sysfs.tree_for(machine))
    count = len(intel_gpus(root))
    chosen = sorted(set(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=3))))
    mask = data.draw(st.none() | st.just(",".join(map(str, chosen))))
    within = len(chosen) if mask is not None else count
    number = data.draw(st.integers(0, within - 1))
    term = data.draw(st.sampled_from(["level_zero:{}", "level_zero:gpu;!level_zero:{}", "*:gpu", "!level_zero:{}"]))
    selector = term.format(number)
    if within == 1 and "!" in selector:
        return  # leaves nothing, which the shim refuses
    assert ours(machine, mask, selector, "FLAT", root) == theirs(machine, mask, selector, "FLAT")
