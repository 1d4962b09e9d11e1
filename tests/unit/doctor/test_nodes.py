"""What differs between nodes, and how a machine that cannot be read looks."""

from __future__ import annotations

import os

import machines
import pytest

from xpu_shim.doctor import versions
from xpu_shim.doctor.check import UNKNOWN, Check, examine
from xpu_shim.doctor.machine import CouldNotLook
from xpu_shim.doctor.ray_nodes import differences


def node(name, **values):
    return {
        "name": name,
        "node_id": name * 8,
        "report": {},
        "versions": {"python": "3.11", "torch": "2.13.0+xpu", **values},
    }


def test_equal_nodes_do_not_differ():
    assert differences([node("a"), node("b")]) == []


def test_another_torch_is_an_error_and_another_kernel_a_warning():
    found = differences(
        [node("a", kernel="6.14"), node("b", kernel="6.12", torch="2.12.1+xpu"), node("c", kernel="6.14")]
    )
    assert {item["what"]: item["state"] for item in found} == {"torch": "error", "kernel": "warning"}
    assert next(item for item in found if item["what"] == "kernel")["values"]["6.14"] == ["a/aaaaaaaa", "c/cccccccc"]


def test_a_variable_that_one_node_lacks():
    (found,) = differences([node("a", ZE_AFFINITY_MASK="0,1"), node("b")])
    assert found["values"] == {"0,1": ["a/aaaaaaaa"], "-": ["b/bbbbbbbb"]}


def test_a_node_without_the_shim_tells_only_what_it_knows():
    bare = {
        "name": "b",
        "node_id": "b" * 8,
        "problem": "not installed",
        "versions": {"python": "3.11", "xpu-shim": "-"},
    }
    found = differences([node("a", **{"xpu-shim": "0.1.0"}), bare])
    assert [(item["what"], item["state"]) for item in found] == [("xpu-shim", "error")]


def test_versions_of_a_machine(tree):
    tree.environ.update(CCL_ALLREDUCE="ring", CCL_LOCAL_RANK="1", HOME="/x")
    found = versions.of(tree.machine())
    assert found["torch"] == "2.13.0+xpu"
    assert found["driver build"] == "38308"
    assert found["cards"] == "8086:e211 (xe), 8086:e211 (xe)"
    assert found["CCL_ALLREDUCE"] == "ring"
    assert "CCL_LOCAL_RANK" not in found


def test_versions_where_nothing_can_be_read(tmp_path):
    tree = machines.Tree(tmp_path / "nothing")
    found = versions.of(tree.machine())
    assert found["cards"] == "unknown"
    assert found["ray"] == "-"


# -- a machine that cannot be read -------------------------------------------------------------------------------------


def test_absent_is_not_unreadable(tree):
    machine = tree.machine()
    assert machine.read("/proc/none") is None
    assert machine.listdir("/none") is None
    with pytest.raises(CouldNotLook, match="does not exist"):
        machine.need("/proc/none")
    tree.write("/proc/loop").unlink()
    os.symlink("loop", tree.root / "proc/loop")
    with pytest.raises(CouldNotLook, match="symbolic links"):
        machine.read("/proc/loop")


def test_an_unreadable_card_is_not_another_vendors(tree):
    """A vendor file that cannot be read must not make the card vanish."""
    vendor = tree.device(0) / "vendor"
    vendor.unlink()
    os.symlink("vendor", vendor)
    with pytest.raises(CouldNotLook):
        _ = tree.machine().gpus


def test_a_check_that_fails_itself_is_not_fine(tree):
    def look(machine):
        raise ZeroDivisionError("oops")

    finding = examine(Check("hardware.x", "x", "y", "z", look), tree.machine()).finding
    assert finding.state == UNKNOWN
    assert "ZeroDivisionError: oops" in finding.evidence


def test_a_path_below_the_root_is_taken_as_it_is(tree):
    machine = tree.machine()
    assert machine.path("/etc/group") == f"{tree.root}/etc/group"
    assert machine.path(f"{tree.root}/etc/group") == f"{tree.root}/etc/group"


def test_what_was_found_once_is_kept(tree):
    calls = []
    machine = tree.machine()
    for _ in range(3):
        machine.once("x", lambda: calls.append(1))
        with pytest.raises(CouldNotLook):
            machine.once("y", _fail)
    assert calls == [1]


def _fail():
    raise CouldNotLook("no")
