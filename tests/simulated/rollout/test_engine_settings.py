"""Executor, sleep mode and configuration errors by each vLLM release's own code, on its platform for Intel GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import tiny_model  # noqa: E402
from releases import parameters, releases  # noqa: E402


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return tiny_model.write(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=parameters())
def outcome(request, model: str) -> dict:
    environment = {**os.environ, "SIMXPU": "1", "SIMXPU_DEVICES": "1", "XPU_SHIM": "0", "HF_HUB_OFFLINE": "1"}
    environment |= {"OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    environment["PYTHONPATH"] = f"{HERE.parents[2]}{os.pathsep}{environment.get('PYTHONPATH', '')}"
    result = subprocess.run(
        [sys.executable, str(HERE / "engine_settings.py"), releases()[request.param], model],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


def test_uni_needs_no_worker_process_and_mp_does(outcome: dict) -> None:
    """On an Intel GPU vLLM keeps the executor it is asked for; its CPU platform does not."""
    assert outcome["executors"] == {"mp": "MultiprocExecutor", "uni": "UniProcExecutor", "None": "UniProcExecutor"}


def test_sleep_is_called_impossible_exactly_where_vllm_refuses_it(outcome: dict) -> None:
    if int(outcome["version"].split(".")[1]) <= 22:
        assert "Sleep mode is not supported on current platform" in outcome["sleep_refused"]
        assert "Intel GPUs need vLLM 0.23 or newer" in outcome["obstacle"]
    else:
        assert (outcome["sleep_refused"], outcome["obstacle"]) == (None, None)


def test_a_configuration_error_can_be_sent_to_the_driver(outcome: dict) -> None:
    kind, refusal = outcome["stock_travels"]
    assert kind == ""
    assert "cannot pickle 'pydantic_core._pydantic_core.ArgsKwargs' object" in refusal
    kind, text = outcome["patched_travels"]
    assert kind == "ValueError"
    assert outcome["text"] in text
    assert "max_model_len" in text
