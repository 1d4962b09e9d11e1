"""verl's own tests of padding, attention and platforms, from a checkout named by XPU_SHIM_VERL_CHECKOUT."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from model_runs import HERE, environment

CHECKOUT = os.environ.get("XPU_SHIM_VERL_CHECKOUT", "")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not CHECKOUT, reason="set XPU_SHIM_VERL_CHECKOUT to a git checkout of verl: its wheels have no tests"
    ),
]

FILES = (
    "tests/plugin/test_platform_abstraction.py",
    "tests/models/test_transformer.py",
    "tests/utils/test_flops_counter.py",
    "tests/utils/test_padding_on_cpu.py",
    "tests/utils/test_torch_functional.py",
)

#: This one states that a machine is NVIDIA's or Huawei's; the right answer here is "intel", as the test below shows.
KNOWN = "TestPlatformDetection::test_empty_triggers_auto_detection"


def run(folder: Path, *arguments: str) -> str:
    """Only the tests are taken from the checkout; the verl they import is the installed one."""
    shutil.copytree(Path(CHECKOUT) / "tests", folder / "tests")
    names = [name for name in FILES if (folder / name).is_file()]
    assert len(names) >= 3, f"XPU_SHIM_VERL_CHECKOUT={CHECKOUT} has only {names} of {FILES}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "upstream_names", *names, *arguments],
        cwd=folder,
        env=environment(str(HERE), XPU_SHIM="1", SIMXPU_DEVICES="B60x4"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=540,
    )
    return done.stdout


def test_they_pass_on_the_simulated_device(tmp_path):
    output = run(tmp_path, "--deselect", f"{FILES[0]}::{KNOWN}")
    last = output.strip().splitlines()[-1]
    assert "passed" in last, output[-6000:]
    assert not {"failed", "error", "errors"} & set(last.replace(",", "").split()), output[-6000:]


def test_the_one_that_knows_two_vendors_finds_intel(tmp_path):
    if not (Path(CHECKOUT) / FILES[0]).is_file():
        return  # a release before platforms
    assert "assert 'intel' in ('nvidia', 'huawei')" in run(tmp_path, "-k", KNOWN.partition("::")[2])
