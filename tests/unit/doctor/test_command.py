"""The subcommands as a user calls them, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import machines
import pytest

from xpu_shim.doctor import examine
from xpu_shim.doctor.check import GROUPS

ROOT = Path(__file__).resolve().parents[3]


def call(*arguments, status=None, text=None, **environ):
    """Run `python -m xpu_shim.doctor`; returns the finished process."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("XPU_SHIM", "ZE_", "ONEAPI", "CCL_"))
    }
    done = subprocess.run(
        [sys.executable, "-m", "xpu_shim.doctor", *arguments],
        cwd=ROOT,
        env={**clean, **environ},
        capture_output=True,
        text=True,
        input=text,
        timeout=120,
        check=False,
    )
    if status is not None:
        assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def sysfs(tmp_path_factory):
    """Root of the sysfs of a healthy machine with two cards."""
    tree = machines.healthy(tmp_path_factory.mktemp("node") / "machine")
    return str(tree.root / "sys")


def test_json_has_every_check_once():
    report = json.loads(call("--json").stdout)
    ids = [item["id"] for item in report["checks"]]
    assert len(ids) == len(set(ids)) >= 35
    assert sum(report["counts"].values()) == len(ids)
    assert {"id", "group", "title", "state", "evidence", "why", "fix", "link"} == set(report["checks"][0])


def test_the_exit_status_is_that_of_the_report():
    done = call("--json")
    assert done.returncode == json.loads(done.stdout)["status"]


def test_exit_status_by_severity(sysfs):
    assert call("--group", "environment", XPU_SHIM_SYSFS=sysfs).returncode == 0
    assert call("--group", "environment", XPU_SHIM_SYSFS=sysfs, ZE_AFFINITY_MASK="0,9").returncode == 1
    assert call("--group", "environment", XPU_SHIM_SYSFS=sysfs, ZE_AFFINITY_MASK="nine").returncode == 3


def test_what_could_not_be_looked_at_is_not_fine():
    assert examine.status(["ok", "not applicable", "could not look"]) == 1
    assert examine.status(["ok", "not applicable"]) == 0
    assert examine.status([]) == 0
    assert examine.status(["warning", "error", "could not look"]) == 3


def test_the_table_names_evidence_reason_fix_and_link(sysfs):
    done = call("--group", "environment", XPU_SHIM_SYSFS=sysfs, PYTORCH_ALLOC_CONF="expandable_segments:True", status=3)
    for words in (
        "environment.expandable_segments",
        "PYTORCH_ALLOC_CONF=expandable_segments:True",
        "UR_RESULT_ERROR_DEVICE_LOST",
        "unset PYTORCH_ALLOC_CONF",
        "torch-xpu-ops/issues/4427",
    ):
        assert words in done.stdout


def test_fine_checks_are_counted_and_shown_on_request(sysfs):
    assert "environment.hierarchy" not in call("--group", "environment", XPU_SHIM_SYSFS=sysfs).stdout
    assert "environment.hierarchy" in call("--group", "environment", "--all", XPU_SHIM_SYSFS=sysfs).stdout


def test_cards_that_are_not_this_machine_s_are_said_to_be_so(sysfs):
    done = call("--group", "hardware", XPU_SHIM_SYSFS=sysfs)
    assert "XPU_SHIM_SYSFS" in done.stdout
    assert "simulated" in done.stdout
    assert json.loads(call("--json", "--group", "hardware", XPU_SHIM_SYSFS=sysfs).stdout)["sysfs"] == sysfs
    assert "simulated" not in call("--group", "hardware").stdout


def test_the_cards_are_named_where_all_is_well(sysfs):
    assert "renderD128 8086:e211" in call("--group", "hardware", XPU_SHIM_SYSFS=sysfs).stdout


def test_groups():
    report = json.loads(call("--json", "--group", "memory", "--group", "container").stdout)
    assert {item["group"] for item in report["checks"]} == {"memory", "container"}
    done = call("--group", "printer", status=2)
    assert "printer" in done.stderr
    assert all(group in done.stderr for group in GROUPS)


def test_with_the_shim_switched_off():
    done = call("--json", XPU_SHIM="0")
    states = {item["id"]: item["state"] for item in json.loads(done.stdout)["checks"]}
    assert states["python.hook"] == "warning"


def test_the_process_that_looks_never_imports_torch(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise SystemExit('torch was imported')")
    (tmp_path / "torch/version.py").write_text("__version__ = '2.13.0+cpu'\n")
    for name in ("ray", "vllm", "verl"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} was imported')")
    report = json.loads(call("--json", PYTHONPATH=str(tmp_path)).stdout)
    assert next(item for item in report["checks"] if item["id"] == "torch.version")["state"] == "ok"


def test_log(tmp_path):
    path = tmp_path / "run.log"
    path.write_text("step 1\nRuntimeError: could not create a primitive\n")
    done = call("--log", str(path), status=3)
    assert "primitive" in done.stdout
    assert "unset ONEAPI_DEVICE_SELECTOR" in done.stdout
    found = json.loads(call("--log", str(path), "--json", status=3).stdout)["failures"]
    assert [(item["id"], item["line"]) for item in found] == [("primitive", 2)]


def test_log_from_standard_input_that_names_nothing():
    assert "No known failure" in call("--log", "-", text="step 1\nstep 2\n", status=0).stdout


def test_log_that_cannot_be_read(tmp_path):
    assert "No such file" in call("--log", str(tmp_path / "none"), status=2).stderr


def test_options_that_exclude_each_other():
    call("--probe", "--ray", status=2)
    call("--timeout", "0", status=2)


def test_env_shows_every_rule_with_its_reason(sysfs):
    from xpu_shim.intel.environment import RULES

    rows = json.loads(call("env", "--json", XPU_SHIM_SYSFS=sysfs, status=0).stdout)
    assert [row["name"] for row in rows] == [rule.name for rule in RULES]
    assert all(row["why"] and row["evidence"] for row in rows)
    out = call("env", XPU_SHIM_SYSFS=sysfs, status=0).stdout
    assert "ONEAPI_DEVICE_SELECTOR" in out


def test_env_as_export_lines_does_what_the_shim_does(sysfs):
    """The lines, run by a shell, give the environment that the policy gives."""
    given = {"ONEAPI_DEVICE_SELECTOR": "level_zero:1", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    lines = call("env", "--export", XPU_SHIM_SYSFS=sysfs, status=0, **given).stdout
    script = f'{lines}\necho "[$ONEAPI_DEVICE_SELECTOR][$ZE_AFFINITY_MASK][$PYTORCH_ALLOC_CONF]"'
    done = subprocess.run(
        ["sh", "-eu", "-c", f"set +u\n{script}"],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[][1][expandable_segments:True]"
    assert "# change PYTORCH_ALLOC_CONF" in lines


def test_env_with_a_malformed_mask(sysfs):
    done = call("env", "--export", XPU_SHIM_SYSFS=sysfs, ZE_AFFINITY_MASK="all", status=3)
    assert done.stdout == ""
    assert "ZE_AFFINITY_MASK='all'" in done.stderr


def test_ray_where_ray_is_missing(tmp_path):
    (tmp_path / "ray.py").write_text("raise ImportError('no ray')")
    done = call("--ray", PYTHONPATH=str(tmp_path), status=2)
    assert "Ray is not installed" in done.stderr
