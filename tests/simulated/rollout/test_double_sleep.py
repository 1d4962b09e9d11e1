"""vLLM's allocator for Intel GPUs, told twice to sleep or to wake: the release's own code on a simulated driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from releases import parameters, releases  # noqa: E402

BOTH = ["kv_cache", "weights"]


def program(release: str) -> dict:
    environment = {**os.environ, "XPU_SHIM": "0", "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    environment |= {"SIMXPU": "1", "SIMXPU_DEVICES": "1"}  # 0.23 keeps sleeping weights in pinned memory
    environment["PYTHONPATH"] = f"{HERE.parents[2]}{os.pathsep}{environment.get('PYTHONPATH', '')}"
    result = subprocess.run(
        [sys.executable, str(HERE / "double_sleep.py"), release],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", parameters())
def test_double_sleep(name: str) -> None:
    release = releases()[name]
    if release and not (Path(release) / "vllm" / "device_allocator" / "xpumem.py").exists():
        pytest.skip("this release has no allocator for Intel GPUs")
    outcome = program(release)
    remembers = int(outcome["version"].split(".")[1]) >= 28
    assert outcome["patched"] == dict.fromkeys(outcome["patched"], BOTH)
    assert outcome["state"] == ("retired" if remembers else "applied")
    if remembers:
        assert outcome["stock"] == outcome["patched"]
    else:
        assert outcome["stock"]["once"] == BOTH
        assert "unmapped twice: weights" in outcome["stock"]["sleep twice"]
        assert "mapped twice: weights" in outcome["stock"]["wake twice"]
