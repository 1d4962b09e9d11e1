"""A healthy machine: every check is silent, and what can be looked at is looked at."""

from __future__ import annotations

import pytest

from xpu_shim.doctor import examine
from xpu_shim.doctor.check import OK, SKIPPED
from xpu_shim.doctor.checks import all_checks


def test_nothing_is_found(tree):
    results = examine.run(tree.machine(), all_checks())
    assert [result for result in results if result.finding.state not in (OK, SKIPPED)] == []
    assert examine.status(result.finding.state for result in results) == 0
    assert all(result.finding.evidence for result in results)


def test_most_checks_really_look(tree):
    results = examine.run(tree.machine(), all_checks())
    skipped = {result.check.id for result in results if result.finding.state == SKIPPED}
    assert skipped == {
        "hardware.integrated",
        "hardware.numa",
        "driver.arc_a_regression",
        "torch.ipc_handle_cache",
        "torch.host_copies",
        "vllm.memory_saver",
        "environment.ranks",
        "memory.cgroup",
        "multinode.host_name",
        "multinode.interfaces",
        "multinode.master",
        "multinode.ray_address",
        "multinode.forwarding",
    }


def test_a_machine_without_anything(tmp_path):
    """No card, no package: an error about the card, a warning about torch, nothing that claims to be fine unseen."""
    import machines

    tree = machines.Tree(tmp_path / "bare")
    (tree.root / "sys/class").mkdir(parents=True)
    (tree.root / "sys/bus/pci/devices").mkdir(parents=True)
    found = {item.check.id: item.finding.state for item in examine.run(tree.machine(), all_checks())}
    assert found["hardware.gpus"] == "error"
    assert found["torch.build"] == "warning"
    assert found["memory.ray_threshold"] == "could not look"
    assert found["vllm.version"] == found["ray.version"] == found["verl.version"] == "not applicable"


@pytest.mark.parametrize("item", all_checks(), ids=lambda item: item.id)
def test_a_check_is_complete(item):
    assert item.title
    assert item.link.startswith("https://")
    assert len(item.why) > 30
