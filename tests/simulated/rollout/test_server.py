"""verl's own vLLM server with the real vLLM of this environment in a Ray actor, beside simulated Intel GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

#: Starting an engine takes a minute or two on two cores.
pytestmark = pytest.mark.slow

SETTINGS = {
    "SIMXPU": "1",
    "SIMXPU_DEVICES": "2",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    # A platform that honours the executor `uni`, which vLLM's own CPU platform does not.
    "VLLM_PLUGINS": "in_process_cpu",
}
SELECTOR = {"ONEAPI_DEVICE_SELECTOR": "level_zero:1"}
NO_SLEEP = [
    "+actor_rollout_ref.rollout.enable_sleep_mode=False",
    "actor_rollout_ref.rollout.free_cache_engine=False",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("model")
    code = "import pathlib, sys; sys.path.insert(0, sys.argv[2]); import tiny_model"
    code += "; tiny_model.write(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(folder), str(HERE)], check=True, capture_output=True, timeout=300)
    return str(folder)


def serve(model: str, shim: str, **options) -> dict:
    environment = {**os.environ, **SETTINGS, "XPU_SHIM": shim}
    paths = [str(HERE / "plugin"), str(HERE.parents[2]), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    result = subprocess.run(
        [sys.executable, str(HERE / "server_actor.py"), model, json.dumps(options)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=560,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return {**json.loads(result.stdout.splitlines()[-1]), "stderr": result.stderr + result.stdout}


def test_stock_settings_do_not_start_without_the_shim(model: str) -> None:
    assert "Sleep mode is not supported on current platform." in serve(model, "0")["error"]


def test_stock_server_hands_the_selector_on_and_has_an_extra_process(model: str) -> None:
    stock = serve(model, "0", env=SELECTOR, overrides=NO_SLEEP)
    assert [row["env"]["ONEAPI_DEVICE_SELECTOR"] for row in stock["processes"]] == ["level_zero:1"] * 2


def test_stock_settings_serve_sleep_and_wake_with_the_shim(model: str) -> None:
    outcome = serve(model, "1", env=SELECTOR, sleep=True, assigned="1")
    assert "error" not in outcome, outcome["error"]
    assert len(outcome["tokens"]) == 4
    assert outcome["after_sleep"] == outcome["tokens"]
    assert outcome["config"] == {"enable_sleep_mode": False, "free_cache_engine": False}
    assert outcome["stderr"].count("enable_sleep_mode=True is switched off") == 1
    (engine,) = outcome["processes"]  # one fewer than stock
    assert engine["env"]["ZE_AFFINITY_MASK"] == "1"
    assert engine["env"]["XPU_SHIM_PROCESS"] == "rollout"
    assert "ONEAPI_DEVICE_SELECTOR" not in engine["env"]
