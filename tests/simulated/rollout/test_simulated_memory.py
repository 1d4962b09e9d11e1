"""vLLM's real memory code, release by release, on a simulated XPU that a second process uses too.

Faults are the simulator's own (`SIMXPU_FAULTS`), the co-tenant's memory is accounted between processes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from releases import parameters, releases  # noqa: E402

OFFLOADS = {"others": 768, "move": [0, -640]}
#: Name to what happens, and the words stock vLLM dies with; None where it sizes the KV cache wrongly instead.
FAULTS = {
    "free 0": ({"faults": "free_memory_zero"}, r"Free memory on device xpu:0 \(0.0/2.0 GiB\) on startup"),
    "everything free": ({"faults": "free_memory_total"}, None),
    "reading raises": ({"faults": "free_memory_raises"}, "support querying the available free memory"),
    "trainer offloads": (OFFLOADS, "Error in memory profiling"),
    "trainer offloads while weights load": ({"others": 768, "move": [-640, 0]}, "Error in memory profiling"),
    "trainer offloads a little": ({"others": 768, "move": [0, -128]}, None),
    "trainer offloads, free 0": (OFFLOADS | {"faults": "free_memory_zero"}, r"Free memory on device xpu:0 \(0.0/"),
    "trainer offloads, reading raises": (OFFLOADS | {"faults": "free_memory_raises"}, "support querying"),
}
CASES = {"true": {}, **{name: case for name, (case, _) in FAULTS.items()}, "short": {"others": 1216}}


def program(release: str, cases: dict[str, dict], shared: Path) -> dict:
    environment = {**os.environ, "SIMXPU": "1", "SIMXPU_DEVICES": "B60x1@2GiB", "SIMXPU_SHARED_DIR": str(shared)}
    environment |= {"XPU_SHIM": "0", "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    environment["PYTHONPATH"] = f"{HERE.parents[2]}{os.pathsep}{environment.get('PYTHONPATH', '')}"
    result = subprocess.run(
        [sys.executable, str(HERE / "simulated_memory.py"), release, json.dumps(cases)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    @cache
    def rows(name: str) -> dict:
        return program(releases()[name], CASES, tmp_path_factory.mktemp("cards"))

    return rows


@pytest.fixture(params=parameters())
def release(request) -> str:
    return request.param


@pytest.mark.parametrize("fault", FAULTS)
def test_fault(table, release: str, fault: str) -> None:
    rows = table(release)
    _, words = FAULTS[fault]
    true = rows["stock"]["true"]["kv_cache"]
    stock, patched = rows["stock"][fault], rows["patched"][fault]
    if words is None:
        assert abs(stock["kv_cache"] - true) / true > 0.01, stock
    else:
        assert re.search(words, stock["error"]), stock
    assert "error" not in patched, patched
    assert abs(patched["kv_cache"] - true) / true <= 0.01


def test_true_readings_give_the_same_size_as_stock(table, release: str) -> None:
    rows = table(release)
    assert rows["patched"]["true"] == rows["stock"]["true"]
    assert rows["stock"]["true"]["kv_cache"] > 0


def test_the_advice_of_a_real_shortage_works(table, release: str, tmp_path: Path) -> None:
    rows = table(release)
    assert "Free memory on device xpu:0" in rows["stock"]["short"]["error"]
    text = rows["patched"]["short"]["error"]
    assert text.startswith("ValueError: Free memory on device xpu:0 (0.81 GiB of 2.00 GiB)")
    advised = float(re.search(r"gpu_memory_utilization from 0.5 to ([\d.]+)", text)[1])
    assert 0 < advised < 0.5
    cases = {
        "as advised": CASES["short"] | {"utilization": advised},
        "more": CASES["short"] | {"utilization": advised + 0.01},
    }
    tried = program(releases()[release], cases, tmp_path)["patched"]
    assert tried["as advised"]["kv_cache"] > 0
    assert "Free memory on device" in tried["more"]["error"]
