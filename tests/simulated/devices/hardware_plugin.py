"""What verl-hardware-plugin does when it is loaded: registers platform and engines `intel`, asking torch.xpu early.

Written for these tests after the plugin's published behaviour; loaded with VERL_USE_EXTERNAL_MODULES=hardware_plugin.
"""

from __future__ import annotations

import torch
from verl.plugin.platform import PlatformRegistry
from verl.plugin.platform.platform_cuda import PlatformCUDA


@PlatformRegistry.register(platform="intel")
class PluginPlatform(PlatformCUDA):
    """Another package's platform for Intel GPUs."""

    device_name = "xpu"
    vendor_name = "intel"
    device_module = torch.xpu

    def is_available(self):
        torch.xpu.init()
        return True

    def is_platform_available(self, use_smi_check=False):
        return self.is_available()

    def communication_backend_name(self):
        return "xccl"

    def visible_devices_envvar(self):
        return "ZE_AFFINITY_MASK"

    def is_ipc_supported(self):
        return False

    def get_device_capability(self, device_index=0):
        return None, None

    def ray_noset_envvars(self):
        return ["RAY_EXPERIMENTAL_NOSET_ZE_AFFINITY_MASK"]

    def rollout_env_vars(self):
        return {"PLUGIN": "1"}


def register_engines() -> None:
    """Its own engines; upstream's registry asserts that nobody registered them before."""
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    @EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="xpu", vendor="intel")
    class PluginEngine(FSDPEngineWithLMHead):
        """Another package's engine."""
