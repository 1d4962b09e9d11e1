"""verl 0.7.1 and 0.8.0 get the uuid of an Intel GPU from torch."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.device_uuid",
    targets=("verl.workers.rollout.vllm_rollout.utils:get_device_uuid",),
    why=(
        "verl asks vLLM's platform for the uuid of the trainer's device, and vLLM's XPU platform does not implement "
        "it: `NotImplementedError` when the rollout is created. In 0.7.1 the uuid names the socket of the weight "
        "sync, so one that is not unique makes all ranks share a socket and wait for ever."
    ),
    how="On xpu the uuid is the one torch reports for the device.",
    upstream=("https://github.com/volcengine/verl/issues/6403",),
    remove_when="verl 0.8.0 is no longer supported: 0.9.0 has no such function.",
    versions={"verl": ("0.7.1", "0.9")},
)


def apply(install: Install) -> None:
    install.replace("get_device_uuid", from_torch)


def from_torch(original):
    def get_device_uuid(device_id):
        from verl.utils.device import get_device_name

        if get_device_name() != "xpu":
            return original(device_id)
        import torch

        return f"GPU-{torch.xpu.get_device_properties(device_id).uuid}"

    return get_device_uuid
