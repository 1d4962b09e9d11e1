"""What Ray is told of the devices: count, ids, and the mask of one worker."""

from __future__ import annotations

import os

import pytest

from xpu_shim.devices import machine, ray_accelerator
from xpu_shim.devices.settings import SettingError
from xpu_shim.intel.visibility import VisibilityError


@pytest.fixture
def node(tmp_path, monkeypatch):
    """Make a machine: node(number of cards, tiles each, integrated GPU too)."""
    for name in (
        "ZE_AFFINITY_MASK",
        "ZE_FLAT_DEVICE_HIERARCHY",
        "XPU_SHIM_VISIBILITY",
        "ONEAPI_DEVICE_SELECTOR",
        "WG_PREFIX",
        "RAY_LOCAL_WORLD_SIZE",
    ):
        monkeypatch.setenv(name, "")  # so that what the code under test sets is taken back, too
        monkeypatch.delenv(name)
    monkeypatch.setattr(machine, "_earlier", [])
    monkeypatch.setenv("XPU_SHIM_SYSFS", str(tmp_path))

    def write(address, device_id, tiles):
        device = tmp_path / "devices" / address
        device.mkdir(parents=True)
        for name, value in (("vendor", "0x8086"), ("device", device_id), ("class", "0x030000")):
            (device / name).write_text(value)
        for tile in range(tiles):
            (device / f"tile{tile}").mkdir()
        link = tmp_path / "class" / "drm" / f"renderD{128 + len(list((tmp_path / 'class/drm').glob('*')))}"
        link.mkdir(parents=True)
        (link / "device").symlink_to(device)

    def make(cards, tiles=1, integrated=False):
        (tmp_path / "class" / "drm").mkdir(parents=True)
        if integrated:
            write("0000:00:02.0", "0xa780", 1)
        for number in range(cards):
            write(f"0000:{3 + number:02x}:00.0", "0x0bd5" if tiles > 1 else "0xe211", tiles)

    return make


def test_integrated_gpu_is_not_counted(node):
    node(4, integrated=True)
    assert ray_accelerator.count() == 4
    assert ray_accelerator.visible_ids() == ["0", "1", "2", "3"]
    assert ray_accelerator.accelerator_type() == "Intel-GPU-B60-Graphics"


def test_integrated_gpu_first_in_pci_order_shifts_the_ids(node, monkeypatch):
    monkeypatch.setenv("ZE_ENABLE_PCI_ID_DEVICE_ORDER", "1")
    node(2, integrated=True)
    assert ray_accelerator.visible_ids() == ["1", "2"]


def test_ids_are_the_user_s_ordinals(node, monkeypatch):
    node(4)
    monkeypatch.setenv("ZE_AFFINITY_MASK", "3,2")
    assert ray_accelerator.visible_ids() == ["2", "3"]


def test_tiles_are_devices_in_flat_mode(node):
    node(2, tiles=2)
    assert ray_accelerator.count() == 4


def test_tiles_named_by_the_user_stay_tiles(node, monkeypatch):
    node(2, tiles=2)
    monkeypatch.setenv("ZE_FLAT_DEVICE_HIERARCHY", "COMPOSITE")
    monkeypatch.setenv("ZE_AFFINITY_MASK", "0.1,1.0")
    monkeypatch.setenv("XPU_SHIM_VISIBILITY", "mask")
    assert ray_accelerator.visible_ids() == ["0.1", "1.0"]
    ray_accelerator.narrow(["1.0"])
    assert os.environ["ZE_AFFINITY_MASK"] == "1.0"


@pytest.mark.parametrize("variable", ["WG_PREFIX", "RAY_LOCAL_WORLD_SIZE"])
def test_a_worker_of_verl_keeps_the_user_s_mask_because_it_is_pinned(node, monkeypatch, variable):
    node(4)
    monkeypatch.setenv(variable, "4")
    ray_accelerator.narrow(["2"])
    assert "ZE_AFFINITY_MASK" not in os.environ
    monkeypatch.setenv("ZE_AFFINITY_MASK", "2,3")
    ray_accelerator.narrow(["2"])
    assert os.environ["ZE_AFFINITY_MASK"] == "2,3"


def test_any_other_actor_gets_the_mask_that_ray_documents(node, monkeypatch):
    node(4)
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "level_zero:0")
    ray_accelerator.narrow(["1", "3"])
    assert os.environ["ZE_AFFINITY_MASK"] == "1,3"
    assert "ONEAPI_DEVICE_SELECTOR" not in os.environ


def test_masking_writes_one_device_and_remembers_the_user_s_mask(node, monkeypatch):
    node(4)
    monkeypatch.setenv("XPU_SHIM_VISIBILITY", "mask")
    monkeypatch.setenv("WG_PREFIX", "actor")
    monkeypatch.setenv("ZE_AFFINITY_MASK", "2,3")
    ray_accelerator.narrow(["3"])
    assert os.environ["ZE_AFFINITY_MASK"] == "3"
    assert machine.masks() == ("3", "2,3")
    assert machine.allowed_mask() == "2,3"


def test_a_worker_without_a_gpu_keeps_its_environment(node, monkeypatch):
    node(4)
    monkeypatch.setenv("XPU_SHIM_VISIBILITY", "mask")
    ray_accelerator.narrow([])
    assert "ZE_AFFINITY_MASK" not in os.environ


def test_bad_policy_is_named(node, monkeypatch):
    node(1)
    monkeypatch.setenv("XPU_SHIM_VISIBILITY", "all")
    with pytest.raises(SettingError, match=r"XPU_SHIM_VISIBILITY='all'.*Allowed: pin .* and mask"):
        ray_accelerator.narrow(["0"])


def test_a_mask_that_leaves_nothing_is_named(node, monkeypatch):
    node(2)
    monkeypatch.setenv("ZE_AFFINITY_MASK", "7")
    with pytest.raises(VisibilityError, match=r"ZE_AFFINITY_MASK='7' leaves no GPU: this machine has 2 device"):
        ray_accelerator.visible_ids()


def test_without_sysfs_the_mask_is_believed(node, monkeypatch, tmp_path):
    monkeypatch.setenv("XPU_SHIM_SYSFS", str(tmp_path / "absent"))
    assert ray_accelerator.visible_ids() is None
    monkeypatch.setenv("ZE_AFFINITY_MASK", "2,3")
    assert ray_accelerator.visible_ids() == ["2", "3"]
