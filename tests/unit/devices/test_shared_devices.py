"""The check that no two ranks sit on one device."""

from __future__ import annotations

import pytest

from xpu_shim.devices.settings import SettingError
from xpu_shim.devices.sharing import Seat, SharedDeviceError, check, table

DISTINCT = [Seat(rank, "node1", rank, f"uuid-{rank}", "0,1,2,3") for rank in range(4)]


def test_distinct_devices_pass():
    check(DISTINCT)


def test_the_same_uuid_on_another_host_is_another_device():
    check([Seat(0, "node1", 0, "u", None), Seat(1, "node2", 0, "u", None)])


def test_a_shared_device_is_an_error_with_a_table():
    seats = [*DISTINCT[:3], Seat(3, "node1", 0, "uuid-0", None)]
    with pytest.raises(SharedDeviceError) as caught:
        check(seats)
    text = str(caught.value)
    assert "ranks 0, 3 on uuid-0 of node1" in text
    assert table(seats) in text
    assert "XPU_SHIM_ALLOW_SHARED_DEVICE=1" in text


def test_table_names_rank_host_index_uuid_and_mask():
    lines = table([Seat(0, "node1", 2, "abc", None), Seat(1, "longer-name", 0, "d", "0,1")]).splitlines()
    assert lines[0].split() == ["rank", "host", "index", "uuid", "ZE_AFFINITY_MASK"]
    assert lines[1].split() == ["0", "node1", "xpu:2", "abc", "(unset)"]
    assert lines[2].split() == ["1", "longer-name", "xpu:0", "d", "0,1"]


def test_sharing_can_be_allowed(monkeypatch):
    monkeypatch.setenv("XPU_SHIM_ALLOW_SHARED_DEVICE", "1")
    check([Seat(0, "a", 0, "u", None), Seat(1, "a", 0, "u", None)])


def test_a_bad_setting_is_named(monkeypatch):
    monkeypatch.setenv("XPU_SHIM_ALLOW_SHARED_DEVICE", "yes")
    with pytest.raises(SettingError, match=r"XPU_SHIM_ALLOW_SHARED_DEVICE='yes'.*Allowed: 0 and 1"):
        check([Seat(0, "a", 0, "u", None), Seat(1, "a", 0, "u", None)])
