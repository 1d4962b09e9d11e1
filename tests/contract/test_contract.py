"""Every patch keeps the contract: see cases.py for what is tried. Real upstream modules, on the simulated device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from xpu_shim._targets import PATCHES

ROOT = Path(__file__).resolve().parents[2]

#: Scenario (a process) to the cases it answers.
CASES = {
    "hook_first": ("hook before import", "init twice", "one layer, same face", "pickle", "spawned child"),
    "targets_first": (
        "hook after import",
        "copied names re-bound",
        "removed",
        "unsupported version",
        "drifted target",
        "applied again",
    ),
    "threads": ("eight threads",),
    "disabled": ("XPU_SHIM_DISABLE",),
    "reload": ("reload",),
}


@cache
def run(scenario: str, folder: str) -> dict[str, dict[str, str]]:
    """Run one scenario in its own process; fails with its stderr if it dies or does not end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XPU_SHIM", "SIMXPU"))}
    environment |= {"SIMXPU": "1", "SIMXPU_DEVICES": "2", "XPU_SHIM": "1", "SHIM_ROOT": str(ROOT)}
    if scenario == "targets_first":
        environment["XPU_SHIM"] = "0"
    if scenario == "disabled":
        environment["XPU_SHIM_DISABLE"] = ",".join(PATCHES)
    output = Path(folder) / f"{scenario}.json"
    result = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("cases.py")), scenario, str(output)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert result.returncode == 0, f"scenario {scenario} ended with {result.returncode}:\n{result.stderr[-4000:]}"
    return json.loads(output.read_text())


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("contract"))


@pytest.mark.parametrize("patch_id", sorted(PATCHES))
@pytest.mark.parametrize(
    ("scenario", "case"), [(scenario, case) for scenario, cases in CASES.items() for case in cases]
)
def test_contract(scenario: str, case: str, patch_id: str, folder: str) -> None:
    verdict = run(scenario, folder)[case][patch_id]
    assert verdict == "ok" or verdict.startswith("n/a: "), verdict


@pytest.mark.parametrize("case", [case for cases in CASES.values() for case in cases])
def test_a_case_is_never_empty(case: str, folder: str) -> None:
    """Guards against a scenario in which no patch was applied, so that every verdict was "n/a"."""
    scenario = next(scenario for scenario, cases in CASES.items() if case in cases)
    assert "ok" in run(scenario, folder)[case].values()
