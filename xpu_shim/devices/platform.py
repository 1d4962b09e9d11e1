"""verl's platform for Intel GPUs. Imports verl, so only patches import it, after verl's platform package."""

from __future__ import annotations

import os
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from verl.plugin.platform.platform_base import PlatformBase

from xpu_shim.devices.machine import allowed_devices, check_selector
from xpu_shim.devices.rayenv import NOSET_VARIABLES, ROLLOUT_VARIABLES
from xpu_shim.intel.devices import discrete_gpus
from xpu_shim.intel.visibility import MASK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType


class Untouched:
    """Answers that must not touch the device: verl asks them in the driver and before a worker is pinned."""

    def is_available(self) -> bool:
        """Whether this process can use an XPU; True also while it has not initialised it.

        Raises:
            xpu_shim.intel.visibility.VisibilityError: if the mask is malformed or leaves no GPU.
        """
        if not torch.xpu._is_compiled():
            return False
        if torch.xpu.is_initialized() or not discrete_gpus():
            return torch.xpu.is_available()
        check_selector()
        return bool(allowed_devices())

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Whether this is an Intel machine: the same answer in the driver, in workers and in actors without a GPU."""
        return torch.xpu._is_compiled()

    def ray_noset_envvars(self) -> list[str]:
        """The variables that make Ray leave the mask alone, of every release: the name changed in Ray 2.58."""
        known = getattr(super(), "ray_noset_envvars", None)
        return list(dict.fromkeys([*(known() or () if known else ()), *NOSET_VARIABLES]))

    def rollout_env_vars(self) -> dict[str, str]:
        """Environment of rollout servers; what the user set in this process wins."""
        known = getattr(super(), "rollout_env_vars", None)
        ours = {name: os.environ.get(name, value) for name, value in ROLLOUT_VARIABLES.items()}
        return {**ours, **(known() or {} if known else {})}


class _Device(PlatformBase):
    """torch.xpu in the shape of verl's `PlatformBase`."""

    @property
    def device_name(self) -> str:
        return "xpu"

    @property
    def vendor_name(self) -> str:
        return "intel"

    @property
    def device_module(self) -> ModuleType:
        return torch.xpu

    def is_available(self) -> bool:
        return torch.xpu.is_available()

    def current_device(self) -> int:
        return torch.xpu.current_device()

    def device_count(self) -> int:
        return torch.xpu.device_count()

    def set_device(self, device_index: int) -> None:
        torch.xpu.set_device(device_index)

    def synchronize(self, device_index: int | None = None) -> None:
        torch.xpu.synchronize(device_index)

    def manual_seed(self, seed: int) -> None:
        torch.xpu.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.xpu.manual_seed_all(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """Does nothing: verl only asks for expandable segments, which lose the device on XPU
        (https://github.com/intel/torch-xpu-ops/issues/4427).
        """

    def empty_cache(self) -> None:
        torch.xpu.empty_cache()

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """(None, None): there is no compute capability, and torch.xpu's answer is a dict that verl would unpack."""
        return None, None

    def communication_backend_name(self) -> str:
        return "xccl"

    def visible_devices_envvar(self) -> str:
        return MASK

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        with torch.profiler.itt.range(msg) if torch.profiler.itt.is_available() else nullcontext():
            yield

    def profiler_start(self) -> None:
        """Does nothing: VTune is started and stopped by the profiler patches."""

    def profiler_stop(self) -> None:
        """Does nothing: see `profiler_start`."""

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        return {"num_gpus": num_gpus}

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        """False: XPU tensors cannot be shared by handle (https://github.com/intel/torch-xpu-ops/issues/1678)."""
        return False

    def cudart(self) -> None:
        return None


class PlatformXPU(Untouched, _Device):
    """Intel GPUs in verl: device xpu, backend xccl, Ray resource GPU, mask `ZE_AFFINITY_MASK`, no IPC."""


def supplement(other: type[PlatformBase]) -> type[PlatformBase]:
    """Another package's Intel platform with the answers it must not touch the device for; ours is returned as it is."""
    if issubclass(other, Untouched):
        return other
    return type(other.__name__, (Untouched, other), {"__module__": other.__module__, "__doc__": other.__doc__})
