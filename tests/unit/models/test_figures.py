"""Peak figures of Intel GPUs: by name, by tile, and unknown where nothing is published."""

from __future__ import annotations

import pytest

from xpu_shim.models import flops


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("Intel(R) Arc(TM) B580 Graphics", 116.5),
        ("Intel(R) Arc(TM) Pro B60 Graphics", 98.5),
        ("Intel(R) Arc(TM) Pro B70 Graphics", 183.5),
        ("Intel(R) Arc(TM) A770 Graphics", 137.6256),
        ("Intel(R) Data Center GPU Max 1100", 355.5328),
        ("Intel(R) Data Center GPU Max 1550", 838.8608),
    ],
)
def test_known_cards(name, teraflops):
    assert flops.of_device(name) / 1e12 == pytest.approx(teraflops)


@pytest.mark.parametrize(
    "name",
    [
        "Intel(R) Arc(TM) Pro A40/A50 Graphics",
        "Intel(R) Arc(TM) A770M Graphics",
        "Intel(R) Arc(TM) B5800 Graphics",
        "Intel(R) Graphics [0xe211]",
    ],
)
def test_other_cards_stay_unknown(name):
    assert flops.is_intel(name)
    assert flops.of_device(name) == float("inf")


def test_a_tile_counts_as_its_part_and_never_as_more_than_the_card():
    name = "Intel(R) Data Center GPU Max 1550"
    assert flops.of_device(name, 512) == flops.of_device(name) / 2
    assert flops.of_device(name, 1024) == flops.of_device(name, 4096) == flops.of_device(name)


def test_figures_are_dense_and_have_a_source():
    for figure in flops.FIGURES.values():
        assert figure.source
        assert figure.flops < 900e12


def test_other_vendors_are_not_intel():
    assert not flops.is_intel("NVIDIA A40")
