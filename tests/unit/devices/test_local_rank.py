"""What a launcher such as torchrun says of a process."""

from __future__ import annotations

import pytest

from xpu_shim.devices import assignment


def test_without_a_launcher_nothing_is_assigned(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert assignment.from_launcher() is None


def test_the_local_rank_is_an_index_within_the_allowed_devices(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert assignment.from_launcher() == (None, 3, "LOCAL_RANK")


@pytest.mark.parametrize("value", ["", "-1", "one", "1.0"])
def test_anything_but_a_number_is_named(monkeypatch, value):
    monkeypatch.setenv("LOCAL_RANK", value)
    with pytest.raises(ValueError, match=f"LOCAL_RANK='{value}' is not a number. Allowed: 0, 1, … below"):
        assignment.from_launcher()
