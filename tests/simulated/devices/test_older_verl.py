"""verl 0.7.1 and 0.8.0, which have no platforms, and 0.9.0, which makes a bare xccl group, on simulated cards."""

from __future__ import annotations

import os

import pytest
from running import HERE, answer, release, run
from test_sft_command import data, sft, values  # noqa: F401  (data is a fixture)

pytestmark = pytest.mark.slow

ANSWERS = """
import json, types
import verl.workers.engine
from omegaconf import OmegaConf
from verl.utils import device
from verl.workers.engine.base import EngineRegistry
from verl.single_controller.ray.base import RayClassWithInitArgs, RayResourcePool
import verl.single_controller.ray.base as base
config = OmegaConf.create({"trainer": {"device": "cuda"}})
device.auto_set_device(config)
asked = []
base.placement_group = lambda bundles, **_: asked.append(bundles) or types.SimpleNamespace(ready=lambda: None)
base.ray = types.SimpleNamespace(get=lambda *_: None)
base.sort_placement_group_by_node_ip = list
RayResourcePool([2], max_colocate_count=1).get_placement_groups(device_name=device.get_device_name())
actor = types.SimpleNamespace(options=lambda **options: types.SimpleNamespace(remote=lambda *a, **k: options))
group = types.SimpleNamespace(id=1)
base.PlacementGroupSchedulingStrategy = lambda **_: None
options = RayClassWithInitArgs(actor)(group, 0, num_gpus=0.5, device_name=device.get_device_name())
engines = []
for model in ("language_model", "value_model"):
    for backend in ("fsdp", "fsdp2"):
        engines.append(EngineRegistry.get_engine_cls(model, backend).__name__)
import torch
print(json.dumps({
    "functions": [device.get_device_name(), device.get_nccl_backend(), device.get_resource_name(),
                  device.get_visible_devices_keyword(), device.is_support_ipc(), config.trainer.device],
    "bundles": asked[0], "num_gpus": options.get("num_gpus"), "engines": engines,
    "initialised": torch.xpu.is_initialized(),
}))
"""


def path(version: str) -> str:
    return f"{release('verl', version)}{os.pathsep}{HERE}"


@pytest.mark.parametrize("version", ["0.7.1", "0.8.0"])
def test_device_functions_placement_and_engines(version):
    assert answer(ANSWERS, PYTHONPATH=path(version)) == {
        "functions": ["xpu", "xccl", "GPU", "ZE_AFFINITY_MASK", False, "xpu"],
        "bundles": [{"CPU": 1, "GPU": 1}] * 2,
        "num_gpus": 0.5,
        "engines": ["FSDPEngineWithLMHead"] * 2 + ["FSDPEngineWithValueHead"] * 2,
        "initialised": False,
    }


@pytest.mark.parametrize("version", ["0.7.1", "0.8.0"])
def test_without_the_shim_the_device_is_the_cpu(version):
    text = run("-c", ANSWERS, PYTHONPATH=path(version), XPU_SHIM="0", check=False)
    assert "AssertionError: Unknown device: cpu for model_type: language_model and backend: fsdp" in text


@pytest.mark.parametrize("version", ["0.8.0", "0.9.0"])
def test_the_stock_sft_command_trains(data, tmp_path, version):  # noqa: F811
    code, text = sft(data, tmp_path / "xpu", "fsdp2", PYTHONPATH=path(version), XPU_SHIM_LOG="info")
    assert code == 0, text[-3000:]
    assert len(values(text, "train/loss")) == 4
    validation = values(text, "val/loss")
    assert validation[-1] < validation[0]
    assert "backend xccl becomes cpu:gloo,xpu:xccl" in text
    for rank in range(4):
        assert f"rank {rank} of 4 sits alone on xpu:{rank}" in text


def test_without_the_shim_the_stock_sft_command_fails(data, tmp_path):  # noqa: F811
    code, text = sft(data, tmp_path / "off", "fsdp2", PYTHONPATH=path("0.8.0"), XPU_SHIM="0")
    assert code != 0
    assert values(text, "train/loss") == []
