"""The vLLM server of each supported verl release, by its own code, stock and with the patches (engine not started)."""

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
from verl_server import PATCHES  # noqa: E402

AWAKE = ["+actor_rollout_ref.rollout.enable_sleep_mode=False"]
#: Releases that import a class of vLLM's that 0.24 no longer has: they get an older vLLM.
OLD = ("0.7.1", "0.8.0")
MP = ["+actor_rollout_ref.rollout.engine_kwargs.vllm.distributed_executor_backend=mp"]


def versions() -> dict[str, str]:
    """Name to directory: the installed verl, and unpacked ones (`$XPU_SHIM_RELEASES/verl-0.8.0/verl/…`)."""
    found = {"installed": ""}
    folder = os.environ.get("XPU_SHIM_RELEASES")
    for path in sorted(Path(folder).glob("verl-*")) if folder else ():
        found[path.name] = str(path)
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return tiny_model.write(tmp_path_factory.mktemp("model"))


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name == "installed" else pytest.mark.slow) for name in versions()],
)
def verl(request) -> str:
    return versions()[request.param]


def child(verl: str, *arguments: str) -> str:
    environment = {**os.environ, "SIMXPU": "1", "SIMXPU_DEVICES": "2", "XPU_SHIM": "0", "HF_HUB_OFFLINE": "1"}
    environment |= {"OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1"}
    environment |= {"VLLM_PLUGINS": "in_process_cpu", "ONEAPI_DEVICE_SELECTOR": "level_zero:1"}
    for name in ("ZE_AFFINITY_MASK", "VLLM_WORKER_MULTIPROC_METHOD", "XPU_SHIM_PROCESS"):
        environment.pop(name, None)
    paths = [verl, str(HERE.parents[2]), str(HERE), str(HERE / "plugin"), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    result = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout.splitlines()[-1]


def serve(verl: str, model: str, **options) -> dict:
    if verl.endswith(OLD):
        options["vllm"] = str(Path(os.environ["XPU_SHIM_RELEASES"]) / "vllm-0.22.1")
    return json.loads(child(verl, str(HERE / "verl_server.py"), model, json.dumps(options)))


def test_stock(verl: str, model: str) -> None:
    assert "Sleep mode is not supported on current platform" in serve(verl, model)["error"]
    outcome = serve(verl, model, overrides=AWAKE, assigned="1")
    assert outcome["executor"] == "mp"
    assert outcome["env"]["ONEAPI_DEVICE_SELECTOR"] == "level_zero:1"
    assert "XPU_SHIM_PROCESS" not in outcome["env"]


def test_patched(verl: str, model: str) -> None:
    outcome = serve(verl, model, patches=PATCHES, assigned="1")
    assert "error" not in outcome, outcome["error"]
    assert outcome["executor"] == "uni"
    assert outcome["sleep_mode"] is False
    assert outcome["config"] == {"enable_sleep_mode": False, "free_cache_engine": False}
    assert not {"sleep", "wake_up"} & set(outcome["calls"])
    assert "ONEAPI_DEVICE_SELECTOR" not in outcome["env"]
    assert outcome["env"]["XPU_SHIM_PROCESS"] == "rollout"
    assert outcome["env"]["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"


def test_the_users_executor_stays(verl: str, model: str) -> None:
    assert serve(verl, model, patches=PATCHES, overrides=MP)["executor"] == "mp"


UUIDS = """
import json, os, sys
del os.environ["ONEAPI_DEVICE_SELECTOR"]  # with it only one device is visible
sys.path[:0] = sys.argv[1:]
from card import intel_platform
intel_platform()
import verl.workers.rollout.vllm_rollout.utils as utils
if not hasattr(utils, "get_device_uuid"):
    print(json.dumps(None)); sys.exit()
try:
    stock = utils.get_device_uuid(0)
except NotImplementedError:
    stock = "NotImplementedError"
from xpu_shim.core.apply import apply_patch
apply_patch("verl.device_functions")  # these releases ask torch.cuda for the device's name
apply_patch("verl.device_uuid")
import torch
print(json.dumps([stock, [utils.get_device_uuid(0), utils.get_device_uuid(1)],
                  [f"GPU-{torch.xpu.get_device_properties(i).uuid}" for i in range(2)]]))
"""


def test_device_uuid(verl: str) -> None:
    before = [str(Path(os.environ["XPU_SHIM_RELEASES"]) / "vllm-0.22.1")] if verl.endswith(OLD) else []
    answer = json.loads(child(verl, "-c", UUIDS, *before))
    if not verl.endswith(OLD):
        assert answer is None  # later releases have no such function
        return
    stock, ours, true = answer
    assert stock == "NotImplementedError"
    assert ours == true
    assert ours[0] != ours[1]
