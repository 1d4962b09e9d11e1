"""verl learns the variable with which Ray 2.58 and newer leave `ZE_AFFINITY_MASK` alone."""

from __future__ import annotations

import os

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.noset_variables",
    targets=("verl.utils.ray_utils:ray_noset_visible_devices",),
    why=(
        "With RAY_EXPERIMENTAL_NOSET_ZE_AFFINITY_MASK=1 Ray leaves all cards visible in every worker, but verl does "
        "not know the variable: it takes it that Ray masked the devices, does not pin, and every rank computes on card 0. "
        "There is no error, only an out-of-memory on one card while the others are idle."
    ),
    how="`ray_noset_visible_devices` also answers True for RAY_EXPERIMENTAL_NOSET_ZE_AFFINITY_MASK.",
    upstream=(
        "https://github.com/ray-project/ray/pull/64440",
        "https://github.com/vllm-project/vllm/issues/58079",
    ),
    remove_when="verl's list names RAY_EXPERIMENTAL_NOSET_ZE_AFFINITY_MASK in every supported release.",
    versions={"verl": ("0.7.1", "0.10")},
    processes=("driver", "worker", "rollout"),
)

VARIABLE = "RAY_EXPERIMENTAL_NOSET_ZE_AFFINITY_MASK"


def probe(module) -> str | None:
    """Upstream is right once it answers True for the variable alone."""
    if module.ray_noset_visible_devices({VARIABLE: "1"}):
        return f"verl knows {VARIABLE}"
    return None


def apply(install: Install) -> None:
    install.replace("ray_noset_visible_devices", also_ze_affinity_mask)


def also_ze_affinity_mask(original):
    # Upstream's default is the `os.environ` mapping itself, bound when the function was defined; the same object here.
    def ray_noset_visible_devices(env_vars=os.environ):
        return bool(original(env_vars) or env_vars.get(VARIABLE))

    return ray_noset_visible_devices
