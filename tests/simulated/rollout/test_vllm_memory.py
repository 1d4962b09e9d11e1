"""vLLM's real memory code, release by release, on a card whose readings are simulated: stock result and ours.

The installed vLLM is always tried. `XPU_SHIM_RELEASES` names a directory with unpacked releases (`vllm-0.17.1/vllm/…`)
to try too; `python -m pip download --no-deps` gets them.
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

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from releases import parameters, releases  # noqa: E402

#: Name to what happens on the card, and the words of the public report that stock vLLM dies with; None where it does
#: not die but sizes the KV cache wrongly.
FAULTS = {
    "free 0 from the kernel op": ({"fault": "zero"}, r"Free memory on device xpu:0 \(0.0/24.0 GiB\) on startup"),
    "free 0 from every source": ({"fault": "zero", "second_fault": "zero"}, r"Free memory on device xpu:0 \(0.0/"),
    "free 0, with the kernel's account": (
        {"fault": "zero", "second_fault": "zero", "kernel": True, "outside": 0.5},
        r"Free memory on device xpu:0 \(0.0/",
    ),
    "everything free": ({"fault": "total", "second_fault": "total"}, None),
    "free never moves": ({"fault": "constant", "second_fault": "constant"}, None),
    "reading raises": ({"fault": "raises", "second_fault": "raises"}, "does not support querying the available free"),
    "total changes": ({"fault": "other_total", "second_fault": "other_total"}, None),
    "co-tenant offloads": ({"others": 9, "move": [0, -8]}, "Error in memory profiling. Initial free memory 15"),
    "co-tenant offloads while weights load": ({"others": 9, "move": [-8, 0]}, "Error in memory profiling"),
    "co-tenant offloads a little": ({"move": [0, -2]}, None),
    "co-tenant offloads, with the kernel's account": (
        {"others": 9, "move": [-1, -7], "kernel": True, "outside": 0.5},
        "Error in memory profiling",
    ),
    "co-tenant allocates, with the kernel's account": ({"move": [0, 3], "kernel": True, "outside": 0.5}, None),
    "trainer allocates while vLLM falls asleep": ({"sleep_grows": 8}, "Memory usage increased after sleeping."),
}
TRUE = {
    "true": {},
    "true, with the kernel's account": {"kernel": True, "outside": 0.5},
    "true, asleep": {"sleep_grows": 0},
}
SHORT = {"short": {"others": 15}, "short, with the kernel's account": {"others": 15, "kernel": True}}
FULL = {"full": {"others": 24}, "full, with the kernel's account": {"others": 24, "kernel": True}}


def program(release: str, cases: dict[str, dict]) -> dict:
    environment = {**os.environ, "SIMXPU": "1", "SIMXPU_DEVICES": "1", "XPU_SHIM": "0"}
    environment |= {"OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    environment["PYTHONPATH"] = f"{HERE.parents[2]}{os.pathsep}{environment.get('PYTHONPATH', '')}"
    result = subprocess.run(
        [sys.executable, str(HERE / "vllm_memory.py"), release, json.dumps(cases)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


@cache
def table(name: str) -> dict:
    return program(releases()[name], {**{fault: case for fault, (case, _) in FAULTS.items()}, **TRUE, **SHORT, **FULL})


def off_by(row: dict, true: dict) -> float:
    """Relative difference of the KV cache's size."""
    return abs(row["kv_cache"] - true["kv_cache"]) / true["kv_cache"]


@pytest.fixture(params=parameters())
def release(request) -> str:
    return request.param


@pytest.mark.parametrize("fault", FAULTS)
def test_fault(release: str, fault: str) -> None:
    rows = table(release)
    case, words = FAULTS[fault]
    true = rows["stock"]["true, with the kernel's account" if case.get("kernel") else "true"]
    stock, patched = rows["stock"][fault], rows["patched"][fault]
    if words is None:
        assert off_by(stock, true) > 0.01, stock
    else:
        assert re.search(words, stock["error"]), stock
    assert "error" not in patched, patched
    assert off_by(patched, true) <= 0.01


@pytest.mark.parametrize("case", TRUE)
def test_true_readings_give_the_same_size_as_stock(release: str, case: str) -> None:
    rows = table(release)
    assert rows["patched"][case] == rows["stock"][case]
    assert "error" not in rows["stock"][case]


@pytest.mark.parametrize("case", SHORT)
def test_a_real_shortage_stays_an_error(release: str, case: str) -> None:
    rows = table(release)
    assert re.match(r"ValueError: Free memory on device xpu:0 \(9.0/24.0 GiB\)", rows["stock"][case]["error"])
    text = rows["patched"][case]["error"]
    assert text.startswith("ValueError: Free memory on device xpu:0 (9.00 GiB of 24.00 GiB)")
    assert "3.00 GiB are missing. This process holds 0.00 GiB, others hold 15.00 GiB" in text
    if "account" in case:
        assert "pid 1 (trainer) 15.00 GiB" in text


@pytest.mark.parametrize("case", FULL)
def test_free_0_on_a_card_that_is_full_is_believed(release: str, case: str) -> None:
    text = table(release)["patched"][case]["error"]
    assert text.startswith("ValueError: Free memory on device xpu:0 (0.00 GiB of 24.00 GiB)")
    assert "No actor_rollout_ref.rollout.gpu_memory_utilization fits" in text


def test_the_advice_of_a_shortage_works(release: str) -> None:
    text = table(release)["patched"]["short"]["error"]
    advised = float(re.search(r"gpu_memory_utilization from 0.5 to ([\d.]+)", text)[1])
    cases = {
        "as advised": {"others": 15, "utilization": advised},
        "more": {"others": 15, "utilization": advised + 0.01},
    }
    rows = program(releases()[release], cases)["patched"]
    assert rows["as advised"]["kv_cache"] > 0
    assert "Free memory on device" in rows["more"]["error"]
