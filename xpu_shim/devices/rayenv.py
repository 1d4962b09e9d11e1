"""What Ray workers on other nodes and rollout servers need in their environment. Standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xpu_shim.intel.visibility import SELECTOR

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Ray up to 2.57 reads the first, Ray from 2.58 the second (https://github.com/ray-project/ray/pull/64440).
NOSET_VARIABLES = ("RAY_EXPERIMENTAL_NOSET_ONEAPI_DEVICE_SELECTOR", "RAY_EXPERIMENTAL_NOSET_ZE_AFFINITY_MASK")

#: Environment of rollout servers, unless the user set another value.
ROLLOUT_VARIABLES = {"XPU_SHIM_PROCESS": "rollout"}

#: Settings of the driver that its workers on other nodes must share: the shim's, oneCCL's, Level Zero's, and the
#: providers and allocators below them.
FORWARDED_PREFIXES = ("XPU_SHIM", "CCL_", "ZE_", "FI_", "SYCL_", "UR_", "NEO", "IGC_", "TORCH_XCCL_")
FORWARDED = ("PYTORCH_ALLOC_CONF", "PYTORCH_XPU_ALLOC_CONF", "EnableDeferBacking")

#: Not forwarded: they describe this process or this node.
LOCAL = ("XPU_SHIM_PROCESS", "XPU_SHIM_SYSFS", "CCL_LOCAL_RANK", "CCL_LOCAL_SIZE", "CCL_ROOT")


def forwarded(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of the driver that belong into the runtime environment of its Ray job."""
    return {
        name: value
        for name, value in environ.items()
        if name not in LOCAL and (name in FORWARDED or name.startswith(FORWARDED_PREFIXES))
    }


def add_to_runtime_env(env_vars: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """`env_vars` of a runtime environment with the driver's settings added and the selector taken out.

    What verl or the user put there stays.
    """
    merged = {**forwarded(environ), **env_vars}
    merged.pop(SELECTOR, None)
    return merged
