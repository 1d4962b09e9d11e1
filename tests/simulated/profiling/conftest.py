"""The collector, a tiny model, and verl releases other than the installed one."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import profiling_programs as launch


@pytest.fixture(scope="session")
def collector(tmp_path_factory) -> dict[str, str]:
    """The environment in which a program's ITT calls are recorded."""
    return {"INTEL_LIBITTNOTIFY64": str(launch.build_collector(tmp_path_factory.mktemp("collector")))}


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    """A tiny model's folder, written by another process: this one does not import torch."""
    folder = tmp_path_factory.mktemp("model")
    code = f"import pathlib, tiny; tiny.write_model(pathlib.Path({str(folder)!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=launch.HERE, check=True, timeout=200)
    return folder


@pytest.fixture(scope="session")
def release(tmp_path_factory):
    """A function from a verl version to a folder to put on `sys.path`: XPU_SHIM_RELEASES/verl-<version>, or fetched."""

    def find(version: str) -> Path:
        known = Path(os.environ.get("XPU_SHIM_RELEASES", "/nonexistent")) / f"verl-{version}"
        if known.is_dir():
            return known
        folder = tmp_path_factory.mktemp("release")
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "-d", str(folder)]
        subprocess.run([*command, f"verl=={version}"], check=True, timeout=300)
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "verl")
        return folder / "verl"

    return find
