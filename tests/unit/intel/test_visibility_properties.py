"""Properties of the mask and selector algebra, for any machine and any mask."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpu_shim.intel import visibility
from xpu_shim.intel.visibility import (
    COMPOSITE,
    FLAT,
    Card,
    VisibilityError,
    all_devices,
    mask_of,
    merge_selector,
    position,
    select,
    training_devices,
    visible_devices,
)

machines = st.lists(st.builds(Card, st.integers(1, 4), st.booleans()), min_size=1, max_size=8).map(tuple)
hierarchies = st.sampled_from([FLAT, COMPOSITE])


@st.composite
def masked_machines(draw):
    """(cards, hierarchy, mask): the mask names devices of the machine, in any order, repeated or not."""
    cards, hierarchy = draw(machines), draw(hierarchies)
    names = []
    for device in all_devices(cards, hierarchy):
        names.append(str(device.ordinal))
        if hierarchy == COMPOSITE:
            names += [f"{device.ordinal}.{tile}" for tile in device.tiles]
    return cards, hierarchy, ",".join(draw(st.lists(st.sampled_from(names), min_size=1, max_size=12)))


@given(masked_machines())
def test_a_mask_only_removes_and_keeps_the_driver_s_order(case):
    cards, hierarchy, mask = case
    everything = {device.ordinal: device for device in all_devices(cards, hierarchy)}
    devices = visible_devices(mask, cards, hierarchy)
    assert [device.ordinal for device in devices] == sorted({int(part.split(".")[0]) for part in mask.split(",")})
    for device in devices:
        assert set(device.tiles) <= set(everything[device.ordinal].tiles)


@given(masked_machines())
def test_mask_of_what_a_mask_leaves_leaves_the_same(case):
    cards, hierarchy, mask = case
    devices = visible_devices(mask, cards, hierarchy)
    assert visible_devices(mask_of(devices, cards, hierarchy), cards, hierarchy) == devices


@given(masked_machines(), st.randoms())
def test_order_spaces_and_repetition_mean_nothing(case, random):
    cards, hierarchy, mask = case
    parts = mask.split(",") * 2
    random.shuffle(parts)
    assert visible_devices(" , ".join(parts), cards, hierarchy) == visible_devices(mask, cards, hierarchy)


@given(masked_machines(), st.data())
def test_a_selector_of_numbers_counts_within_the_mask(case, data):
    cards, hierarchy, mask = case
    before = visible_devices(mask, cards, hierarchy)
    chosen = sorted(set(data.draw(st.lists(st.integers(0, len(before) - 1), min_size=1))))
    selector = "level_zero:" + ",".join(map(str, chosen))
    merged = merge_selector(mask, selector, cards, hierarchy)
    assert visible_devices(merged, cards, hierarchy) == tuple(before[number] for number in chosen)


@given(masked_machines(), st.data())
def test_accepting_all_but_some_is_discarding_those(case, data):
    cards, hierarchy, mask = case
    devices = visible_devices(mask, cards, hierarchy)
    numbers = data.draw(st.sets(st.integers(0, len(devices) - 1), min_size=1))
    discard = ";".join(f"!level_zero:{number}" for number in numbers)
    expected = tuple(device for number, device in enumerate(devices) if number not in numbers)
    assert select(discard, devices, hierarchy) == select(f"level_zero:*;{discard}", devices, hierarchy) == expected


@given(masked_machines())
def test_every_device_of_a_pinned_process_is_found_at_its_own_index(case):
    cards, hierarchy, mask = case
    devices = training_devices(visible_devices(mask, cards, hierarchy))
    indices = [
        position(
            mask_of([device._replace(tiles=device.tiles[:1])], cards, hierarchy), len(devices), [mask], cards, hierarchy
        )
        for device in devices
    ]
    assert indices == list(range(len(devices)))


@given(st.integers(2, 8), st.data())
def test_ray_s_one_device_masks_honoured_or_ignored_give_distinct_devices(count, data):
    cards = (Card(),) * count
    allowed = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))
    user = ",".join(map(str, allowed))
    for ignored in (False, True):
        seen = set()
        for ordinal in map(str, allowed):
            really = visible_devices(None if ignored else ordinal, cards)
            seen.add(really[position(ordinal, len(really), [ordinal, user], cards)].ordinal)
        assert seen == set(allowed)


@given(st.text(max_size=12), hierarchies)
def test_any_text_as_a_mask_is_read_or_refused_with_the_variable_s_name(text, hierarchy):
    entries, refusal = None, f"ZE_AFFINITY_MASK={text!r}"
    try:
        entries = visibility.parse_mask(text, hierarchy)
    except VisibilityError as error:
        refusal = str(error)
    assert f"ZE_AFFINITY_MASK={text!r}" in refusal
    assert entries is None or all(ordinal >= 0 for ordinal, _ in entries)


@given(st.text(alphabet="level_zrogpu:*!;,.0123 ", max_size=24))
def test_any_text_as_a_selector_is_read_or_refused_with_the_variable_s_name(text):
    devices = visible_devices(None, (Card(),) * 4)
    chosen, refusal = (), f"ONEAPI_DEVICE_SELECTOR={text!r}"
    try:
        chosen = select(text, devices)
    except VisibilityError as error:
        refusal = str(error)
    assert f"ONEAPI_DEVICE_SELECTOR={text!r}" in refusal
    assert set(chosen) <= set(devices)


def test_a_frozen_mask_that_names_other_devices_is_never_guessed():
    with pytest.raises(VisibilityError):
        position("0", 1, ["3"], (Card(),) * 4)
