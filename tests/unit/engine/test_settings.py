"""Every setting is documented for the user and known to the doctor."""

from __future__ import annotations

import re
from pathlib import Path

from xpu_shim.doctor.checks.python import SETTINGS

ROOT = Path(__file__).resolve().parents[3]
#: The shim sets these for its own children; the quick start names them below its table.
MARKS = {"XPU_SHIM_ARMED", "XPU_SHIM_PROCESS"}
#: What only the scripts of a checkout read; the README names them.
OF_SCRIPTS = {"XPU_SHIM_CACHE", "XPU_SHIM_TORCH_INDEX"}


def named_in(folder: str, pattern: str) -> set[str]:
    files = (ROOT / folder).rglob(pattern)
    # A name with its underscore last is the beginning of several.
    return {name for file in files for name in re.findall(r"\bXPU_SHIM(?:_[A-Z]+)+(?!\w)", file.read_text())}


def test_the_doctor_knows_every_setting():
    assert named_in("xpu_shim", "*.py") - OF_SCRIPTS == set(SETTINGS) - {"XPU_SHIM"}


def test_the_quick_start_has_a_row_for_every_setting():
    text = (ROOT / "docs" / "quick-start.md").read_text()
    rows = {name for line in re.findall(r"^\| (`XPU_SHIM.*?) \|", text, re.M) for name in re.findall(r"`(\w+)`", line)}
    assert rows == set(SETTINGS) - MARKS


def test_the_readme_has_the_settings_of_the_scripts():
    scripts = named_in("scripts", "*.sh") - set(SETTINGS)
    assert scripts == OF_SCRIPTS
    assert all(f"`{name}`" in (ROOT / "README.md").read_text() for name in scripts)
