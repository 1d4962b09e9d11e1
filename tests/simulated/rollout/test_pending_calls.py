"""Calls to a vLLM engine that dies before it answers, with and without the patch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import tiny_model  # noqa: E402
from releases import parameters, releases  # noqa: E402

SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "SIMXPU": "1",
    "SIMXPU_DEVICES": "1",
}


def program(shim: str, what: str, argument: str) -> dict:
    environment = {**os.environ, **SETTINGS, "XPU_SHIM": shim}
    paths = [str(HERE.parents[2]), str(HERE), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    result = subprocess.run(
        [sys.executable, str(HERE / "pending_calls.py"), what, argument],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", parameters())
def test_the_reading_task_ends(name: str) -> None:
    names = ("dead", "shut down", "garbage", "called later")
    stock = program("0", "client", releases()[name])
    assert stock == {key: ["waits"] for key in names} | {"state": stock["state"]}  # the witness
    patched = program("1", "client", releases()[name])
    assert patched == {key: ["EngineDeadError"] for key in names} | {"state": "applied"}


@pytest.mark.slow
def test_an_engine_dies_in_a_call(tmp_path) -> None:
    tiny_model.write(tmp_path)
    stock = program("0", "engine", str(tmp_path))
    patched = program("1", "engine", str(tmp_path))
    for how in ("exits", "is killed"):
        assert stock[f"{how}, call in hand"] == "waits"  # the witness
        assert patched[f"{how}, call in hand"] == "EngineDeadError"
        assert stock[f"{how}, later call"] == patched[f"{how}, later call"] == "EngineDeadError"
    assert patched["state"] == "applied"
