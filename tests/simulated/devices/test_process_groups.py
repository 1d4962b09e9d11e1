"""Process groups on simulated cards: pinned before they exist, CPU tensors too, never bound, no card shared."""

from __future__ import annotations

import json
import os
import re

import pytest
from running import ranks, run
from sysfs_tree import Tree


def results(text: str) -> list[dict]:
    # Two ranks may write on one line.
    found = [json.loads(found) for found in re.findall(r"RANK (\{[^}]*\})", text)]
    return sorted(found, key=lambda result: result["rank"])


def test_bare_xccl_serves_cpu_tensors_and_meshes_and_every_rank_sits_on_its_card(tmp_path):
    tripwire = tmp_path / "first_use"
    text = ranks("group_rank.py", 2, "xccl", "--device-id", "--mesh", SIMXPU_TRIPWIRE=str(tripwire))
    first, second = results(text)
    assert [first["index"], second["index"]] == [0, 1]
    assert first["uuid"] != second["uuid"]
    for result in (first, second):
        assert result["backend"] == "cpu:gloo,xpu:xccl"
        assert result["cpu"] == result["xpu"] == [3.0, 3.0, 3.0]
        assert result["mesh"] == 2
    uses = [json.loads(line) for line in tripwire.read_text().splitlines()]
    assert len(uses) == 2, "the launcher or a helper process used the device"
    for use in uses:
        assert any("devices/pinning.py" in frame for frame in use["stack"]), use["stack"]


def test_without_the_shim_cpu_tensors_fail():
    text = ranks("group_rank.py", 2, "xccl", XPU_SHIM="0", check=False)
    assert "No backend type associated with device type cpu" in text
    assert results(text) == []


@pytest.mark.slow
def test_without_the_shim_a_bound_group_cannot_make_a_mesh_and_all_ranks_start_on_card_0():
    text = ranks("group_rank.py", 2, "cpu:gloo,xpu:xccl", "--device-id", "--mesh", XPU_SHIM="0", check=False)
    assert "does not support splitting" in text
    text = ranks("group_rank.py", 2, "cpu:gloo,xpu:xccl", XPU_SHIM="0")
    assert [result["index"] for result in results(text)] == [0, 0]
    assert len({result["uuid"] for result in results(text)}) == 1, "nothing said so"


def test_a_shared_card_is_an_error_with_a_table_of_all_ranks():
    text = ranks("shared_rank.py", 2, check=False, ZE_AFFINITY_MASK="2")
    assert "2 ranks sit on 1 device(s): ranks 0, 1 on" in text
    header = next(line for line in text.splitlines() if "rank" in line and "ZE_AFFINITY_MASK" in line)
    assert header.split()[-5:] == ["rank", "host", "index", "uuid", "ZE_AFFINITY_MASK"]
    assert "XPU_SHIM_ALLOW_SHARED_DEVICE=1 allows sharing" in text
    assert results(text) == []


@pytest.mark.slow
def test_sharing_a_card_can_be_allowed_and_without_the_shim_nobody_notices():
    for setting in ({"XPU_SHIM_ALLOW_SHARED_DEVICE": "1"}, {"XPU_SHIM": "0"}):
        text = ranks("shared_rank.py", 2, ZE_AFFINITY_MASK="2", **setting)
        assert len(results(text)) == 2
        assert ("2 ranks sit on 1 device(s)" in text) == ("XPU_SHIM" not in setting)


PIN = """
import json, os, torch, verl
from xpu_shim.devices import pinning
where = pinning.pin()
print(json.dumps([where.index, torch.xpu.current_device(), torch.xpu.device_count(), os.environ.get("ZE_AFFINITY_MASK")]))
"""


def test_masking_is_said_to_have_no_effect_on_ranks_of_torchrun_once_a_node():
    warning = "XPU_SHIM_VISIBILITY='mask' has no effect on ranks of torchrun"
    for rank in (0, 1):
        text = run("-c", PIN, LOCAL_RANK=str(rank), XPU_SHIM_VISIBILITY="mask", ZE_AFFINITY_MASK="1,3")
        assert json.loads(text.strip().splitlines()[-1]) == [rank, rank, 2, "1,3"]
        assert text.count(warning) == (1 if rank == 0 else 0)


@pytest.fixture
def two_numa_nodes(tmp_path):
    """A tree in which card 0 is next to the first CPU this process may use, and card 1 next to the last."""
    tree, cpus = Tree(tmp_path), sorted(os.sched_getaffinity(0))
    near = [cpus[0], cpus[-1]]
    for bus, cpu in zip((3, 7), near, strict=True):
        tree.card(f"0000:{bus:02x}:00.0", local_cpulist=str(cpu), numa_node="-1")
    return str(tree.root), near


def test_ranks_are_bound_to_the_cpus_next_to_their_card(two_numa_nodes):
    root, near = two_numa_nodes
    text = ranks("group_rank.py", 2, "xccl", "numa", XPU_SHIM_SYSFS=root, SIMXPU_DEVICES="B60x2")
    assert [result["cpus"] for result in results(text)] == [[cpu] for cpu in near]
    assert "pynvml not available" not in text


@pytest.mark.slow
def test_without_the_shim_ranks_are_not_bound(two_numa_nodes):
    root, _ = two_numa_nodes
    arguments = ("group_rank.py", 2, "cpu:gloo,xpu:xccl", "numa")
    text = ranks(*arguments, XPU_SHIM_SYSFS=root, SIMXPU_DEVICES="B60x2", XPU_SHIM="0")
    for result in results(text):
        assert result["cpus"] == sorted(os.sched_getaffinity(0))
