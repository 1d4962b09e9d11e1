"""Intel GPUs are found from sysfs alone."""

from __future__ import annotations

import subprocess
import sys

from xpu_shim.intel.devices import discrete_gpus, has_discrete_gpu, intel_gpus

INTEGRATED = ("0000:00:02.0", 0xA780)


def test_no_tree_is_no_gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("XPU_SHIM_SYSFS", str(tmp_path / "absent"))
    assert intel_gpus() == ()
    assert not has_discrete_gpu()


def test_every_field_of_a_card(sysfs):
    (sysfs.root / "drivers" / "xe").mkdir(parents=True)
    sysfs.card("0000:03:00.0", numa_node="1", local_cpulist="16-31", tile0__gt0__id="0", tile1__gt0__id="1")
    (sysfs.root / "devices/pci0000:00/0000:03:00.0/driver").symlink_to(sysfs.root / "drivers" / "xe")
    (gpu,) = intel_gpus()
    assert gpu == ("renderD128", "0000:03:00.0", 0xE211, True, 1, "16-31", 2, "xe")


def test_tiles_are_known_by_model_where_the_driver_does_not_list_them(sysfs):
    sysfs.card("0000:03:00.0", 0x0BD5)  # Max 1550
    sysfs.card("0000:04:00.0", 0x0BDA)  # Max 1100
    sysfs.card("0000:05:00.0", 0xE211)  # Arc Pro B60
    assert [gpu.tiles for gpu in intel_gpus()] == [2, 1, 1]


def test_numa_node_minus_one_means_unknown(sysfs):
    sysfs.card("0000:03:00.0")
    assert intel_gpus()[0].numa_node is None


def test_integrated_gpu_is_not_a_training_device(sysfs):
    sysfs.card(*INTEGRATED)
    assert [gpu.discrete for gpu in intel_gpus()] == [False]
    assert not has_discrete_gpu()


def test_other_vendors_and_other_classes_do_not_count(sysfs):
    sysfs.card("0000:04:00.0", 0x2684, vendor=0x10DE)
    sysfs.card("0000:00:0b.0", 0x7D1D, pci_class=0x120000)  # an NPU
    assert intel_gpus() == ()


def test_passed_through_card_on_the_root_bus_is_discrete(sysfs):
    sysfs.card("0000:00:05.0", 0xE211)
    sysfs.card("0000:00:02.0", 0x0BD5)
    assert len(discrete_gpus()) == 2


def test_unknown_new_card_counts_by_its_memory_or_its_bus(sysfs):
    sysfs.card("0000:00:02.0", 0xFFF0, tile0__physical_vram_size_bytes="0x600000000")
    sysfs.card("0000:07:00.0", 0xFFF1)
    assert len(discrete_gpus()) == 2


def test_order_is_discrete_first_then_pci_address(sysfs):
    sysfs.card("0000:83:00.0")
    sysfs.card(*INTEGRATED)
    sysfs.card("0000:0c:00.0")
    sysfs.card("10000:01:00.0")
    assert [gpu.address for gpu in intel_gpus()] == ["0000:0c:00.0", "0000:83:00.0", "10000:01:00.0", "0000:00:02.0"]


def test_order_by_pci_address_alone_on_request(sysfs, monkeypatch):
    monkeypatch.setenv("ZE_ENABLE_PCI_ID_DEVICE_ORDER", "1")
    sysfs.card("0000:83:00.0")
    sysfs.card(*INTEGRATED)
    assert [gpu.discrete for gpu in intel_gpus()] == [False, True]


def test_a_container_sees_only_the_cards_handed_in(sysfs):
    sysfs.card("0000:03:00.0")
    node = sysfs.card("0000:04:00.0")
    dri = sysfs.root.parent / "dev" / "dri"
    dri.mkdir(parents=True)
    (dri / node).touch()
    assert [gpu.node for gpu in intel_gpus()] == [node]


def test_unreadable_and_broken_files_never_raise(sysfs):
    sysfs.card("0000:03:00.0", numa_node="nonsense", local_cpulist="")
    (sysfs.root / "class/drm/renderD200").mkdir()
    (sysfs.root / "class/drm/renderD201").symlink_to("/nowhere")
    (gpu,) = intel_gpus()
    assert gpu.numa_node is None


def test_asking_imports_neither_torch_nor_anything_slow(sysfs):
    sysfs.card("0000:03:00.0")
    code = (
        "import sys; from xpu_shim.intel.devices import has_discrete_gpu; assert has_discrete_gpu();"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'torch', 'dataclasses', 'logging', 'pyzes'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
