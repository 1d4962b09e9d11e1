"""verl finds the Intel platform and engines by itself, also beside an NVIDIA tool and beside verl-hardware-plugin."""

from __future__ import annotations

import json
import os

from running import answer, run

PLATFORM = """
import json, torch
from verl.plugin.platform import get_platform
from verl.utils import device
p = get_platform()
print(json.dumps({
    "vendor": p.vendor_name, "device": p.device_name, "backend": p.communication_backend_name(),
    "resource": p.ray_resource_name(), "ipc": p.is_ipc_supported(), "mask": p.visible_devices_envvar(),
    "noset": p.ray_noset_envvars(), "rollout": p.rollout_env_vars(), "options": p.ray_resource_options(0.5),
    "capability": device.get_device_capability(), "functions": [device.get_device_name(), device.get_nccl_backend()],
    "available": p.is_available(), "class": type(p).__module__, "initialised": torch.xpu.is_initialized(),
}))
"""

ENGINES = """
import json, sys
import verl.workers.engine
from verl.workers.engine.base import EngineRegistry
if "--plugin-late" in sys.argv:
    EngineRegistry.get_engine_cls("language_model", "fsdp")
if "hardware_plugin" in sys.modules or "--plugin-late" in sys.argv:
    import hardware_plugin
    hardware_plugin.register_engines()
print(json.dumps([EngineRegistry.get_engine_cls(model, backend).__name__
                  for model in ("language_model", "value_model") for backend in ("fsdp", "fsdp2")]))
"""

BOTH_VARIABLES = ["RAY_EXPERIMENTAL_NOSET_ONEAPI_DEVICE_SELECTOR", "RAY_EXPERIMENTAL_NOSET_ZE_AFFINITY_MASK"]


def test_platform_is_found_without_touching_the_device():
    assert answer(PLATFORM) == {
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
        "available": True,
        "class": "xpu_shim.devices.platform",
        "initialised": False,
    }


def test_without_the_shim_verl_falls_back_to_nvidia():
    text = run("-c", PLATFORM, XPU_SHIM="0")
    assert "No supported accelerator detected" in text
    assert json.loads(text.strip().splitlines()[-1])["vendor"] == "nvidia"


def test_an_answering_nvidia_smi_does_not_win(tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexit 0\n")
    tool.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    assert answer(PLATFORM, PATH=path)["vendor"] == "intel"
    assert answer(PLATFORM, PATH=path, XPU_SHIM="0")["vendor"] == "nvidia"


def test_the_user_s_choice_of_platform_wins():
    assert answer(PLATFORM, VERL_PLATFORM="nvidia")["vendor"] == "nvidia"
    assert answer(PLATFORM, VERL_PLATFORM="intel")["vendor"] == "intel"


def test_a_plugin_s_platform_wins_but_does_not_touch_the_device():
    seen = answer(PLATFORM, VERL_USE_EXTERNAL_MODULES="hardware_plugin")
    assert seen["class"] == "hardware_plugin"
    assert not seen["initialised"]
    assert sorted(seen["noset"]) == BOTH_VARIABLES
    assert seen["rollout"] == {"XPU_SHIM_PROCESS": "rollout", "PLUGIN": "1"}


def test_without_the_shim_the_plugin_s_platform_touches_the_device():
    seen = answer(PLATFORM, VERL_USE_EXTERNAL_MODULES="hardware_plugin", XPU_SHIM="0", VERL_PLATFORM="intel")
    assert seen["initialised"]
    assert seen["noset"] == BOTH_VARIABLES[1:]


def test_a_plugin_loaded_before_the_shim_acts():
    late = (
        "import verl, hardware_plugin\n"
        "from xpu_shim.core.apply import apply_patch, remove_patch\n"
        "from verl.plugin.platform import PlatformRegistry\n"
        "apply_patch('verl.platform')\n" + PLATFORM
    )
    seen = answer(late, XPU_SHIM_DISABLE="verl.platform")
    assert (seen["class"], seen["vendor"], seen["initialised"]) == ("hardware_plugin", "intel", False)
    assert sorted(seen["noset"]) == BOTH_VARIABLES


def test_stock_engines_serve_xpu():
    stock = ["FSDPEngineWithLMHead", "FSDPEngineWithLMHead", "FSDPEngineWithValueHead", "FSDPEngineWithValueHead"]
    assert answer(ENGINES) == stock


def test_without_the_shim_there_is_no_engine():
    text = run("-c", ENGINES, XPU_SHIM="0", check=False, VERL_USE_EXTERNAL_MODULES="", VERL_PLATFORM="nvidia")
    assert "FSDPEngineWithLMHead" in text  # the registry works, for cuda
    code = ENGINES.replace("import verl.workers.engine\n", "import verl.workers.engine, hardware_plugin\n")
    code = code.replace("hardware_plugin.register_engines()", "pass")
    text = run("-c", code, XPU_SHIM="0", check=False, VERL_PLATFORM="intel")
    assert "ValueError: No engine registered for device='xpu', vendor='intel'" in text


def test_a_plugin_s_engines_win_in_both_orders():
    plugin = ["PluginEngine", "PluginEngine", "FSDPEngineWithValueHead", "FSDPEngineWithValueHead"]
    assert answer(ENGINES, VERL_USE_EXTERNAL_MODULES="hardware_plugin") == plugin
    late = ENGINES.replace('"--plugin-late" in sys.argv', "True")
    assert answer(late) == plugin


NOTHING = """
import json, os, sys
import verl
from verl.utils import device
from verl.plugin.platform import get_platform
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
    "functions": [function.__code__.co_filename for function in (
        torch.distributed.init_process_group, ray_noset_visible_devices, ray.init.__wrapped__)],
    "environ": dict(os.environ),
}))
"""


def test_on_a_machine_without_intel_devices_nothing_changes(tmp_path):
    machine = {
        "SIMXPU": "0",
        "XPU_SHIM_SYSFS": str(tmp_path),
        "CUDA_VISIBLE_DEVICES": "0",
        "ONEAPI_DEVICE_SELECTOR": "x",
    }
    with_shim = answer(NOTHING, **machine)
    without = answer(NOTHING, XPU_SHIM="0", **machine)
    assert without["environ"].pop("XPU_SHIM") == "0"
    assert with_shim == without
