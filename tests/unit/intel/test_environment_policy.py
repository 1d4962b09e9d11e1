"""The environment policy: what it changes, what it leaves, and that every row can be believed."""

from __future__ import annotations

import logging

import pytest

from xpu_shim.core import log
from xpu_shim.intel import environment
from xpu_shim.intel.visibility import VisibilityError


@pytest.fixture
def four_cards(sysfs):
    for bus in (3, 4, 0x83, 0x84):
        sysfs.card(f"0000:{bus:02x}:00.0")
    return sysfs


@pytest.fixture
def records():
    """What the shim logs, whatever level is configured."""
    seen: list[logging.LogRecord] = []

    class Handler(logging.Handler):
        def emit(self, record):
            seen.append(record)

    log._warned.clear()
    root, handler = log.logger(), Handler()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield seen
    root.removeHandler(handler)
    root.setLevel(level)


def warnings(records):
    return [record.getMessage() for record in records if record.levelno == logging.WARNING]


def test_selector_is_removed_and_its_restriction_kept_with_one_warning(four_cards, records):
    environ = {"ONEAPI_DEVICE_SELECTOR": "level_zero:2,3"}
    environment.apply(environ)
    assert environ == {"ZE_AFFINITY_MASK": "2,3"}
    (warning,) = warnings(records)
    for part in ("ONEAPI_DEVICE_SELECTOR='level_zero:2,3'", "ZE_AFFINITY_MASK=2,3"):
        assert part in warning


def test_selector_that_restricts_nothing_leaves_no_mask(four_cards, records):
    environ = {"ONEAPI_DEVICE_SELECTOR": "level_zero:gpu"}
    environment.apply(environ)
    assert environ == {}
    assert len(warnings(records)) == 1


def test_selector_within_the_user_s_mask(four_cards):
    environ = {"ONEAPI_DEVICE_SELECTOR": "level_zero:1", "ZE_AFFINITY_MASK": "1,3"}
    environment.apply(environ)
    assert environ == {"ZE_AFFINITY_MASK": "3"}


def test_selector_of_tiles(sysfs):
    sysfs.card("0000:03:00.0", 0x0BD5, tile0__x="", tile1__x="")
    sysfs.card("0000:04:00.0", 0x0BD5, tile0__x="", tile1__x="")
    environ = {"ONEAPI_DEVICE_SELECTOR": "level_zero:0.1,1.0", "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}
    environment.apply(environ)
    assert environ == {"ZE_AFFINITY_MASK": "0.1,1.0", "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}


@pytest.mark.parametrize(
    "bad",
    [
        {"ONEAPI_DEVICE_SELECTOR": "level_zero:gpu:0"},
        {"ONEAPI_DEVICE_SELECTOR": "opencl:gpu"},
        {"ZE_AFFINITY_MASK": "gpu0"},
        {"ZE_FLAT_DEVICE_HIERARCHY": "flat"},
    ],
)
def test_bad_values_change_nothing_and_raise_one_error(four_cards, bad):
    environ = {**bad, "X": "1"}
    with pytest.raises(VisibilityError, match=next(iter(bad))):
        environment.apply(environ, "2.11.0")
    assert environ == {**bad, "X": "1"}


def test_a_clean_environment_stays_as_it_is(four_cards, records):
    environ = {"PATH": "/bin", "ZE_AFFINITY_MASK": "0,1", "CCL_TOPO_ALGO": "0"}
    before = dict(environ)
    assert environment.apply(environ, "2.14.1+xpu") == ()
    assert environ == before
    assert warnings(records) == []


def test_old_oneccl_on_arc_b_gets_its_setting_unless_the_user_has_one(four_cards):
    for version, expected in (("2.12.1+xpu", "0"), ("2.13.0+xpu", None), ("", None)):
        environ: dict[str, str] = {}
        environment.apply(environ, version)
        assert environ.get("CCL_ZE_CACHE_OPEN_IPC_HANDLES") == expected
    environ = {"CCL_ZE_CACHE_OPEN_IPC_HANDLES": "1"}
    environment.apply(environ, "2.11.0")
    assert environ == {"CCL_ZE_CACHE_OPEN_IPC_HANDLES": "1"}


def test_recommendations_are_said_only_on_request_and_set_nothing(four_cards, records):
    environ = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert environment.apply(environ, "2.13.0") == ()
    assert environ == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    said = [record.getMessage() for record in records if record.levelno == logging.INFO]
    assert any("PYTORCH_ALLOC_CONF" in line and "torch-xpu-ops/issues/4427" in line for line in said)
    assert any("CCL_ALLREDUCE=ring" in line for line in said)


def test_every_row_has_evidence_and_a_reason():
    for rule in environment.RULES:
        assert rule.action in (environment.SET, environment.REMOVE, environment.RECOMMEND)
        assert rule.evidence, rule.name
        assert all(link.startswith("https://") for link in rule.evidence), rule.name
        assert rule.why, rule.name
        assert rule.when, rule.name
        assert bool(rule.value) == (rule.action != environment.REMOVE) or rule.name.startswith("PYTORCH"), rule.name
