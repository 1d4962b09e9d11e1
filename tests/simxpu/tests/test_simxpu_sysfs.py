"""The fake /sys tree reads like the kernel's."""

import subprocess
import sys
from pathlib import Path

import pytest
from simxpu import sysfs
from simxpu.description import parse


@pytest.fixture
def root(tmp_path) -> Path:
    sysfs.write_tree(tmp_path, parse("iGPU+B60x2+Max1550"))
    return tmp_path


def test_render_nodes_lead_to_the_pci_device(root):
    nodes = sorted((root / "class/drm").glob("renderD*"))
    assert [n.name for n in nodes] == ["renderD128", "renderD129", "renderD130", "renderD131"]
    node = nodes[1]
    assert node.is_symlink()
    assert str(node.readlink()).startswith("../../devices/pci0000:00/")
    device = node / "device"
    assert device.is_symlink()
    assert device.resolve() == (root / "bus/pci/devices/0000:03:00.0").resolve()
    read = {name: (device / name).read_text().strip() for name in ("vendor", "device", "class", "numa_node")}
    assert read == {"vendor": "0x8086", "device": "0xe211", "class": "0x030000", "numa_node": "-1"}
    uevent = dict(line.split("=") for line in (device / "uevent").read_text().split())
    assert uevent["PCI_SLOT_NAME"] == "0000:03:00.0"
    assert uevent["DRIVER"] == "xe"
    assert (device / "driver").resolve().name == "xe"
    assert (device / "driver" / "0000:03:00.0").resolve() == device.resolve()
    assert (device / "drm/card1/device").resolve() == device.resolve()


def test_memory_shows_in_the_bar_and_in_the_drivers_files(root):
    def bar2(address: str) -> int:
        lines = (root / "bus/pci/devices" / address / "resource").read_text().splitlines()
        start, end, _ = (int(x, 16) for x in lines[2].split())
        return end - start + 1

    assert bar2("0000:03:00.0") == 32 << 30  # 24 GiB, rounded up to a power of two
    assert bar2("0000:00:02.0") == 256 << 20
    assert bar2("0000:0b:00.0") == 128 << 30
    assert int((root / "bus/pci/devices/0000:03:00.0/tile0/physical_vram_size_bytes").read_text(), 16) == 24 << 30
    max1550 = root / "bus/pci/devices/0000:0b:00.0/drm/card3"
    assert (max1550 / "gt/gt1").is_dir()
    assert int((max1550 / "lmem_total_bytes").read_text()) == 128 << 30


def test_no_link_is_broken_and_none_leaves_the_tree(root):
    for path in root.rglob("*"):
        assert path.exists(), path
        assert path.resolve().is_relative_to(root.resolve()), path


def test_many_processes_may_create_it_at_once(tmp_path):
    code = "from simxpu.sysfs import tree_for; print(tree_for('B60x3@3GiB'))"
    children = [
        subprocess.Popen([sys.executable, "-c", code], env={"TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    outputs = [c.communicate(timeout=60)[0] for c in children]
    assert [c.returncode for c in children] == [0] * 8
    assert len(set(outputs)) == 1
    root = Path(outputs[0].strip())
    assert len(list((root / "class/drm").glob("renderD*"))) == 3
    assert [p.name for p in root.parent.iterdir()] == [root.name]  # nothing left of the others


def test_it_is_exported_before_anything_is_imported(python):
    code = "import os, sys; print(os.environ.get('XPU_SHIM_SYSFS'), 'torch' in sys.modules)"
    root, torch_loaded = python(code, SIMXPU_DEVICES="B60x2").check().words
    assert torch_loaded == "False"
    assert len(list(Path(root, "class/drm").glob("renderD*"))) == 2
    assert python(code, XPU_SHIM_SYSFS="/elsewhere").check().words[0] == "/elsewhere"
    assert python(code, SIMXPU="0").check().words[0] == "None"
