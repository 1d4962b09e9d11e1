"""verl 0.9.x on the CPU with gloo: the reference the simulated cards are compared with.

Loaded with VERL_USE_EXTERNAL_MODULES=cpu_platform. It registers what verl needs to run its own trainer there and
nothing of the shim.
"""

from __future__ import annotations

import os
import types
from contextlib import contextmanager

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


def _nothing(*args, **kwargs):
    return 0


#: torch.cpu with the names verl calls on a device module.
DEVICE = types.SimpleNamespace(
    current_device=_nothing,
    device_count=lambda: 1,
    is_available=lambda: True,
    set_device=_nothing,
    synchronize=_nothing,
    empty_cache=_nothing,
    memory_allocated=_nothing,
    memory_reserved=_nothing,
    max_memory_allocated=_nothing,
    max_memory_reserved=_nothing,
    reset_peak_memory_stats=_nothing,
    mem_get_info=lambda *_: (1, 1),
    manual_seed=torch.manual_seed,
    manual_seed_all=torch.manual_seed,
    get_rng_state=torch.get_rng_state,
    set_rng_state=torch.set_rng_state,
    get_device_name=lambda *_: "cpu",
)


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """Just enough of a platform for SFT."""

    device_name = "cpu"
    vendor_name = "none"
    device_module = DEVICE

    def is_available(self):
        return True

    def current_device(self):
        return torch.device("cpu")

    def device_count(self):
        return 1

    def set_device(self, device_index):
        pass

    def synchronize(self, device_index=None):
        pass

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    def manual_seed_all(self, seed):
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings):
        pass

    def empty_cache(self):
        pass

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CPU_VISIBLE"

    @contextmanager
    def nvtx_range(self, msg):
        yield

    def profiler_start(self):
        pass

    def profiler_stop(self):
        pass

    def ray_resource_name(self):
        return "GPU"

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False

    def cudart(self):
        return None


def prepare() -> None:
    """Select the stock engine classes, and say gloo once: verl makes "cpu:gloo,<device>:<backend>"."""
    os.environ["VERL_ENGINE_DEVICE"] = "cuda"
    original = torch.distributed.init_process_group

    def init_process_group(backend=None, **kwargs):
        return original(backend="gloo", **kwargs)

    torch.distributed.init_process_group = init_process_group
    # FSDP2's offload policy pins; without an accelerator torch refuses.
    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self


prepare()
