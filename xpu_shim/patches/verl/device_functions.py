"""verl 0.7.1 and 0.8.0, which have no platforms: the functions of `verl.utils.device` know Intel GPUs."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.device_functions",
    targets=(
        "verl.utils.device:get_device_name",
        "verl.utils.device:get_nccl_backend",
        "verl.utils.device:get_resource_name",
        "verl.utils.device:get_visible_devices_keyword",
        "verl.utils.device:auto_set_device",
    ),
    why=(
        "These releases know CUDA and Ascend only. On an Intel machine the device is cpu (`AssertionError: Unknown "
        "device: cpu for model_type: language_model and backend: fsdp`), the backend nccl, the Ray resource NPU "
        "(`KeyError: 'NPU'`), and `trainer.device` stays cuda."
    ),
    how="Device xpu, backend xccl, Ray resource GPU, mask ZE_AFFINITY_MASK; `trainer.device` becomes xpu.",
    upstream=("https://github.com/volcengine/verl/issues/6403", "https://github.com/volcengine/verl/pull/6455"),
    remove_when="verl 0.8.0 is no longer supported: newer releases have platforms.",
    versions={"verl": ("0.7.1", "0.9")},
)


def apply(install: Install) -> None:
    from xpu_shim.devices.settings import wants_intel

    if not wants_intel():
        install.skip("VERL_PLATFORM names another platform")
    install.replace("get_device_name", lambda original: answer(original, "xpu"))
    install.replace("get_nccl_backend", lambda original: answer(original, "xccl"))
    install.replace("get_resource_name", lambda original: answer(original, "GPU"))
    install.replace("get_visible_devices_keyword", lambda original: answer(original, "ZE_AFFINITY_MASK"))
    install.replace("auto_set_device", to_xpu)


def answer(original, value):
    """A function that answers `value` where torch can use XPUs, and as upstream elsewhere."""

    def replacement():
        import torch

        return value if torch.xpu._is_compiled() else original()

    return replacement


def to_xpu(original):
    def auto_set_device(config):
        import torch

        if not torch.xpu._is_compiled():
            return original(config)
        if (
            config
            and hasattr(config, "trainer")
            and hasattr(config.trainer, "device")
            and config.trainer.device != "xpu"
        ):
            from xpu_shim.core.log import logger

            logger("xpu_shim.devices").info("trainer.device=%s becomes xpu", config.trainer.device)
            config.trainer.device = "xpu"
        return None

    return auto_set_device
