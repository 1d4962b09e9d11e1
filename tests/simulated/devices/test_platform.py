"""verl finds the Intel platform and engines by itself, also beside an NVIDIA tool and beside verl-hardware-plugin."""

from __future__ import annotations

import os

import pytest
from running import HERE, answer, release

#: What verl takes this process for, its engines, and whether finding out used the device.
QUESTIONS = """
import json, sys, torch
from verl.plugin.platform import get_platform
from verl.utils import device
p = get_platform()
found = {
    "vendor": p.vendor_name, "device": p.device_name, "backend": p.communication_backend_name(),
    "resource": p.ray_resource_name(), "ipc": p.is_ipc_supported(), "mask": p.visible_devices_envvar(),
    "noset": sorted(p.ray_noset_envvars()), "rollout": p.rollout_env_vars(), "options": p.ray_resource_options(0.5),
    "capability": device.get_device_capability(), "functions": [device.get_device_name(), device.get_nccl_backend()],
    "class": type(p).__module__, "initialised": torch.xpu.is_initialized(), "available": p.is_available(),
}
import verl.workers.engine
from verl.workers.engine.base import EngineRegistry
if PLUGIN_ENGINES == "late":
    EngineRegistry.get_engine_cls("language_model", "fsdp")
if PLUGIN_ENGINES:
    import hardware_plugin
    hardware_plugin.register_engines()
try:
    found["engines"] = [EngineRegistry.get_engine_cls(model, backend).__name__
                        for model in ("language_model", "value_model") for backend in ("fsdp", "fsdp2")]
except Exception as error:
    found["engines"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""

PLUGIN = {"VERL_USE_EXTERNAL_MODULES": "hardware_plugin"}
BOTH_VARIABLES = ["RAY_EXPERIMENTAL_NOSET_ONEAPI_DEVICE_SELECTOR", "RAY_EXPERIMENTAL_NOSET_ZE_AFFINITY_MASK"]
STOCK = ["FSDPEngineWithLMHead", "FSDPEngineWithLMHead", "FSDPEngineWithValueHead", "FSDPEngineWithValueHead"]
PLUGINS = ["PluginEngine", "PluginEngine", "FSDPEngineWithValueHead", "FSDPEngineWithValueHead"]


def ask(first: str = "", plugin_engines: str = "", **environ: str) -> dict:
    return answer(f"PLUGIN_ENGINES = {plugin_engines!r}\n{first}\n{QUESTIONS}", **environ)


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    """A PATH on which nvidia-smi answers."""
    folder = tmp_path_factory.mktemp("bin")
    tool = folder / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexit 0\n")
    tool.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.parametrize("version", [pytest.param("0.9.0", marks=pytest.mark.slow), ""], ids=["0.9.0", "installed"])
def test_platform_and_engines_are_found_without_using_the_device_although_nvidia_smi_answers(path, version):
    other = {"PYTHONPATH": f"{release('verl', version)}{os.pathsep}{HERE}"} if version else {}
    assert ask(PATH=path, **other) == {
        "vendor": "intel",
        "device": "xpu",
        "backend": "xccl",
        "resource": "GPU",
        "ipc": False,
        "mask": "ZE_AFFINITY_MASK",
        "noset": BOTH_VARIABLES,
        "rollout": {"XPU_SHIM_PROCESS": "rollout"},
        "options": {"num_gpus": 0.5},
        "capability": [None, None],
        "functions": ["xpu", "xccl"],
        "class": "xpu_shim.devices.platform",
        "initialised": False,
        "available": True,
        "engines": STOCK,
    }


def test_without_the_shim_verl_takes_the_machine_for_nvidia_s(path):
    assert ask(PATH=path, XPU_SHIM="0")["vendor"] == "nvidia"


@pytest.mark.slow
def test_the_user_s_choice_of_platform_wins():
    assert ask(VERL_PLATFORM="nvidia")["vendor"] == "nvidia"


def test_a_plugin_wins_but_does_not_touch_the_device():
    seen = ask(plugin_engines="early", **PLUGIN)
    assert (seen["class"], seen["vendor"], seen["initialised"]) == ("hardware_plugin", "intel", False)
    assert seen["noset"] == BOTH_VARIABLES
    assert seen["rollout"] == {"XPU_SHIM_PROCESS": "rollout", "PLUGIN": "1"}
    assert seen["engines"] == PLUGINS


@pytest.mark.slow
def test_a_plugin_loaded_before_the_shim_acts_and_engines_registered_after():
    late = (
        "import verl, hardware_plugin\n"
        "from xpu_shim.core.apply import apply_patch\n"
        "from verl.plugin.platform import PlatformRegistry\n"
        "assert PlatformRegistry.get('intel') is hardware_plugin.PluginPlatform\n"
        "apply_patch('verl.platform')\n"
    )
    seen = ask(late, plugin_engines="late", XPU_SHIM_DISABLE="verl.platform")
    assert (seen["class"], seen["vendor"], seen["initialised"]) == ("hardware_plugin", "intel", False)
    assert seen["noset"] == BOTH_VARIABLES
    assert seen["engines"] == PLUGINS


def test_without_the_shim_the_plugin_uses_the_device_early_and_stock_engines_are_missing():
    seen = ask(XPU_SHIM="0", VERL_PLATFORM="intel", **PLUGIN)
    assert seen["initialised"]
    assert seen["noset"] == BOTH_VARIABLES[1:]
    assert seen["engines"].startswith("ValueError: No engine registered for device='xpu', vendor='intel'")


NOTHING = """
import json, os
import verl
from verl.utils import device
try:
    from verl.plugin.platform import get_platform
except ImportError:  # 0.8.0 has no platforms
    get_platform = type(None)
from verl.utils.ray_utils import ray_noset_visible_devices
names = ("get_device_name get_nccl_backend get_resource_name get_visible_devices_keyword is_support_ipc"
         " get_device_capability").split()
import ray, torch
from ray._private.accelerators import get_accelerator_manager_for_resource
print(json.dumps({
    "answers": [repr(getattr(device, name)()) for name in names],
    "constants": [device.is_cuda_available, device.is_npu_available],
    "platform": type(get_platform()).__qualname__,
    "ray": get_accelerator_manager_for_resource("GPU").__name__,
    "ours": [function.__name__ for function in (torch.distributed.init_process_group, ray_noset_visible_devices)
             if "_xpu_shim_patch" in function.__dict__],
    "environ": dict(os.environ),
}))
"""


@pytest.mark.parametrize("version", [pytest.param("0.8.0", marks=pytest.mark.slow), ""], ids=["0.8.0", "installed"])
def test_on_a_machine_without_intel_devices_nothing_changes(tmp_path, version):
    machine = {"SIMXPU": "0", "XPU_SHIM_SYSFS": str(tmp_path), "ONEAPI_DEVICE_SELECTOR": "opencl:cpu"}
    if version:
        machine["PYTHONPATH"] = f"{release('verl', version)}{os.pathsep}{HERE}"
    with_shim = answer(NOTHING, **machine)
    without = answer(NOTHING, XPU_SHIM="0", **machine)
    assert without["environ"].pop("XPU_SHIM") == "0"
    assert with_shim == without
    assert with_shim["ours"] == []


#: transformers asks whether there is an XPU while it is imported, as do accelerate and others.
ASKS_EARLY = """
import json, os, verl, transformers.integrations.sdpa_attention, torch
used = os.path.exists(os.environ["SIMXPU_TRIPWIRE"])
available = torch.xpu.is_available()
print(json.dumps([available, used or os.path.exists(os.environ["SIMXPU_TRIPWIRE"]), torch.xpu.device_count()]))
"""


@pytest.mark.parametrize(("shim", "used"), [("1", False), ("0", True)])
def test_who_asks_for_an_xpu_does_not_open_it(shim, used, tmp_path):
    found = answer(ASKS_EARLY, XPU_SHIM=shim, SIMXPU_TRIPWIRE=str(tmp_path / "first_use"), ZE_AFFINITY_MASK="1,3")
    assert found == [True, used, 2]


def test_where_no_card_is_left_torch_answers(tmp_path):
    late_mask = ASKS_EARLY.replace("available = ", 'os.environ["ZE_AFFINITY_MASK"] = "9"; available = ')
    assert answer(late_mask, SIMXPU_TRIPWIRE=str(tmp_path / "first_use")) == [False, True, 0]
