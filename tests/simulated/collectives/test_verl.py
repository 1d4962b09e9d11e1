"""verl's own functions on a simulated stack that divides small averages twice and returns the sum for MIN and MAX."""

from __future__ import annotations

import pytest

RANKS = 2
MEAN = (RANKS + 1) / 2
#: Function to its result on every rank, from rank + 1 on each.
AVERAGES = {
    "loss_aggregation": MEAN,
    "timing": {"step": MEAN, "generate": 2 * MEAN},
    "validation_loss": MEAN,
    "statistics": [MEAN, RANKS, 1.0],
}
MICRO_BATCHES = ("micro_batch_count", "longest_sequence", "fits_everywhere")


@pytest.fixture(scope="module")
def seen(reports):
    return [report["verl"] for report in reports("miscomputed", RANKS)]


@pytest.mark.parametrize("function", AVERAGES)
def test_unpatched_it_is_wrong(seen, function):
    assert seen[0][function]["off"] != AVERAGES[function]


@pytest.mark.parametrize("function", AVERAGES)
def test_patched_it_is_right(seen, function):
    assert [row[function]["on"] for row in seen] == [AVERAGES[function]] * RANKS


@pytest.mark.parametrize("case", MICRO_BATCHES)
def test_unpatched_micro_batches_are_wrong(seen, case):
    assert [row[case]["off"] for row in seen] != [row[case]["right"] for row in seen]


@pytest.mark.parametrize("case", MICRO_BATCHES)
def test_patched_micro_batches_are_those_of_the_cpu(seen, case):
    for row in seen:
        assert isinstance(row[case]["right"], list), row
        assert row[case]["on"] == row[case]["right"]
    # All ranks have to take the same number of steps.
    assert len({len(row[case]["on"]) for row in seen}) == 1
