"""The documented examples of masks, hierarchies and selectors, one by one."""

from __future__ import annotations

import pytest

from xpu_shim.intel import visibility
from xpu_shim.intel.visibility import Card, VisibilityError, merge_selector, select, training_devices, visible_devices

#: The configuration of the Level Zero specification's examples.
TWO_CARDS = (Card(4), Card(4))
B60X4 = (Card(),) * 4


def seen(mask, cards, hierarchy):
    return [(device.card, device.tiles) for device in visible_devices(mask, cards, hierarchy)]


# https://oneapi-src.github.io/level-zero-spec/level-zero/latest/core/PROG.html#affinity-mask
@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ("0, 1", [(0, (0, 1, 2, 3)), (1, (0, 1, 2, 3))]),
        ("0", [(0, (0, 1, 2, 3))]),
        ("1", [(1, (0, 1, 2, 3))]),
        ("0.0", [(0, (0,))]),
        ("1.1, 1.2", [(1, (1, 2))]),
        ("0.2, 1.3, 1.0, 0.3", [(0, (2, 3)), (1, (0, 3))]),
    ],
)
def test_composite_examples_of_the_specification(mask, expected):
    assert seen(mask, TWO_CARDS, "COMPOSITE") == expected


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ("0, 1, 2, 3, 4, 5, 6, 7", [(card, (tile,)) for card in (0, 1) for tile in range(4)]),
        ("0", [(0, (0,))]),
        ("1", [(0, (1,))]),
        ("0, 4", [(0, (0,)), (1, (0,))]),
        ("1, 2, 7", [(0, (1,)), (0, (2,)), (1, (3,))]),
    ],
)
@pytest.mark.parametrize("hierarchy", ["FLAT", "COMBINED"])
def test_flat_examples_of_the_specification(mask, expected, hierarchy):
    assert seen(mask, TWO_CARDS, hierarchy) == expected


def test_order_of_the_mask_means_nothing():
    assert visible_devices("3,1", B60X4) == visible_devices("1,3", B60X4)


def test_tile_notation_is_not_valid_when_tiles_are_devices():
    with pytest.raises(
        VisibilityError, match=r"ZE_AFFINITY_MASK='0\.0'.*card\.tile needs ZE_FLAT_DEVICE_HIERARCHY=COMP"
    ):
        visible_devices("0.0", TWO_CARDS, "FLAT")


@pytest.mark.parametrize("mask", [None, "", "  ", "default"])
def test_no_mask(mask):
    assert len(visible_devices(mask, B60X4)) == 4


def test_entries_beyond_the_machine_are_skipped_as_the_driver_does():
    assert [device.ordinal for device in visible_devices("2,7", B60X4)] == [2]


@pytest.mark.parametrize("mask", ["a", "0,", "-1", "0;1", "level_zero:0", "0,1,", "0..1", "1.x", "٣"])
@pytest.mark.parametrize("hierarchy", ["FLAT", "COMPOSITE"])
def test_malformed_masks_name_variable_value_and_allowed_form(mask, hierarchy):
    with pytest.raises(VisibilityError) as caught:
        visibility.parse_mask(mask, hierarchy)
    text = str(caught.value)
    assert "ZE_AFFINITY_MASK" in text
    assert repr(mask) in text
    assert visibility.ALLOWED_MASK[hierarchy] in text


def test_unknown_hierarchy():
    with pytest.raises(VisibilityError, match=r"ZE_FLAT_DEVICE_HIERARCHY='flat' is not known\. Allowed are FLAT"):
        visibility.parse_hierarchy("flat")
    assert visibility.parse_hierarchy(None) == visibility.parse_hierarchy("") == "FLAT"


def test_torch_drops_the_integrated_gpu_beside_a_discrete_one():
    cards = (Card(), Card(discrete=False), Card())
    assert [device.ordinal for device in training_devices(visible_devices(None, cards))] == [0, 2]
    assert [device.ordinal for device in training_devices(visible_devices("1", cards))] == [1]


# https://intel.github.io/llvm/EnvironmentVariables.html#oneapi-device-selector
@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("level_zero:gpu", [0, 1, 2, 3]),
        ("LEVEL_ZERO:GPU", [0, 1, 2, 3]),
        ("level_zero:*", [0, 1, 2, 3]),
        ("*:gpu", [0, 1, 2, 3]),
        ("level_zero:0,2", [0, 2]),
        ("level_zero:3,1", [1, 3]),
        ("opencl:gpu;level_zero:1", [1]),
        ("*:gpu;!level_zero:2", [0, 1, 3]),
        ("!level_zero:0", [1, 2, 3]),
        ("!*:cpu", [0, 1, 2, 3]),
        ("!opencl:*", [0, 1, 2, 3]),
        ("level_zero:*;!level_zero:0;!level_zero:1", [2, 3]),
        ("level_zero:9", []),
        ("level_zero:cpu", []),
        ("opencl:*", []),
        ("cuda:0", []),
        ("0,1", [0, 1]),
        ("2", [2]),
    ],
)
def test_selectors_on_four_cards(selector, expected):
    assert [device.ordinal for device in select(selector, visible_devices(None, B60X4))] == expected


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("level_zero:0.*", [(0, (0, 1, 2, 3))]),
        ("level_zero:0.2", [(0, (2,))]),
        ("level_zero:1.0,0.3", [(0, (3,)), (1, (0,))]),
        ("level_zero:*.*", [(0, (0, 1, 2, 3)), (1, (0, 1, 2, 3))]),
        ("level_zero:*,*.*", [(0, (0, 1, 2, 3)), (1, (0, 1, 2, 3))]),
    ],
)
def test_selectors_of_tiles(selector, expected):
    devices = visible_devices(None, TWO_CARDS, "COMPOSITE")
    assert [(device.card, device.tiles) for device in select(selector, devices, "COMPOSITE")] == expected


@pytest.mark.parametrize(
    "selector",
    ["level_zero:gpu:0", "level_zero", "level_zero:", "gpu", "vulkan:0", "level_zero:x", "!opencl:*;level_zero:0", ""],
)
def test_malformed_selectors_name_variable_value_allowed_form_and_a_way_out(selector):
    with pytest.raises(VisibilityError) as caught:
        select(selector, visible_devices(None, B60X4))
    text = str(caught.value)
    for part in ("ONEAPI_DEVICE_SELECTOR", repr(selector), visibility.ALLOWED_SELECTOR, "unset ONEAPI_DEVICE_SELECTOR"):
        assert part in text


@pytest.mark.parametrize(
    ("mask", "selector", "expected"),
    [
        (None, "level_zero:gpu", None),
        (None, "level_zero:2,3", "2,3"),
        ("2,3", "level_zero:1", "3"),  # the selector counts within the mask
        ("2,3", "level_zero:*", "2,3"),
        ("3,2", "level_zero:0", "2"),
        (None, "1", "1"),
    ],
)
def test_selector_becomes_a_mask(mask, selector, expected):
    assert merge_selector(mask, selector, B60X4) == expected


def test_selector_becomes_a_mask_where_the_machine_is_not_known():
    assert merge_selector(None, "level_zero:0,1", ()) == "0,1"
    assert merge_selector("4,5", "level_zero:1", ()) == "5"
    assert merge_selector(None, "level_zero:gpu", ()) is None


def test_empty_intersection_says_how_the_numbers_work():
    # https://github.com/ray-project/ray/pull/64440: mask 1 and level_zero:1 leave nothing
    with pytest.raises(
        VisibilityError, match=r"level_zero:1.*ZE_AFFINITY_MASK='1' has numbered 1 device.*from 0.*has 4"
    ):
        merge_selector("1", "level_zero:1", B60X4)


@pytest.mark.parametrize(
    ("assigned", "count", "masks", "index"),
    [
        ("2", 1, ["2", None], 0),  # Ray's mask honoured
        ("2", 4, ["2", None], 2),  # ignored
        ("3", 2, ["3", "2,3"], 1),  # frozen under the user's mask by an early probe
        ("3", 2, ["2,3"], 1),  # pinned, user's mask honoured
        ("3", 4, ["2,3"], 3),  # user's mask ignored
        ("0", 4, [None], 0),
    ],
)
def test_position_of_what_was_assigned(assigned, count, masks, index):
    assert visibility.position(assigned, count, masks, B60X4) == index


def test_position_skips_integrated_devices_as_torch_does():
    cards = (Card(discrete=False), Card(), Card())
    assert visibility.position("2", 2, [None], cards) == 1


def test_position_of_a_tile():
    assert visibility.position("1.0", 2, ["0.0,1.0"], TWO_CARDS, "COMPOSITE") == 1


def test_position_that_cannot_be_explained_lists_what_was_tried():
    with pytest.raises(VisibilityError, match=r"assigned GPU '0'.*sees 2 device.*2,3 -> 2; no mask -> 4.*Start Ray"):
        visibility.position("0", 2, ["2,3"], B60X4)
