"""verl's platform `intel`: device xpu, backend xccl, Ray resource GPU."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.platform",
    targets=(
        "verl.plugin.platform.platform_manager:PlatformRegistry.register",
        "verl.plugin.platform.platform_manager:_detect_platform_name",
    ),
    why=(
        "verl has no platform for Intel GPUs: it takes `nvidia`, or stops with `ValueError: Unknown platform "
        "'intel'. Registered: ('nvidia', 'huawei', 'amd')`. A machine where nvidia-smi answers too is always taken "
        "for NVIDIA's. verl-hardware-plugin's platform asks torch.xpu whether it is available in the driver and "
        "before workers are pinned, which opens the device there and freezes the mask."
    ),
    how=(
        "Registers `PlatformXPU` as `intel` and picks it on an Intel machine unless VERL_PLATFORM names another. A "
        "platform another package registers as `intel` wins, with our answers to the questions that must not touch the "
        "device and to what it does not know (the Ray variable of releases before 2.58)."
    ),
    upstream=(
        "https://github.com/volcengine/verl/pull/7371",
        "https://github.com/verl-project/verl-hardware-plugin",
        "https://github.com/intel/torch-xpu-ops/issues/2089",
    ),
    remove_when="verl ships an Intel platform that is picked automatically and does not touch the device to find out.",
    versions={"verl": ("0.9", "0.10")},
)

NAME = "intel"


def probe(module) -> str | None:
    """Upstream is right once it registers the platform itself."""
    known = module.PlatformRegistry.get(NAME)
    return f"verl has {known.__name__}" if known is not None and known.__module__.startswith("verl.plugin.") else None


def apply(install: Install) -> None:
    from xpu_shim.devices.platform import PlatformXPU, supplement

    platforms = install.module.PlatformRegistry._platforms
    before = platforms.get(NAME)
    platforms[NAME] = PlatformXPU if before is None else supplement(before)

    def undo():
        if before is None:
            platforms.pop(NAME, None)
        else:
            platforms[NAME] = before

    install.on_remove(undo)
    install.replace("PlatformRegistry.register", supplemented)
    install.replace("_detect_platform_name", intel_first)


def supplemented(original):
    def register(cls, platform):
        decorate = original(cls, platform)

        def decorator(platform_cls):
            from xpu_shim.devices.platform import supplement

            result = decorate(platform_cls)
            if platform.strip().lower() == NAME:
                cls._platforms[NAME] = supplement(platform_cls)
            return result

        return decorator

    return register


def intel_first(original):
    def _detect_platform_name():
        import os

        import torch

        if os.environ.get("VERL_PLATFORM", "").strip():
            return original()
        if torch.xpu._is_compiled():
            return NAME
        from xpu_shim.core.log import warn_once

        warn_once(
            f"this machine has Intel GPUs, but torch {torch.__version__} is built without XPU support; verl will not "
            "use them. Install torch's XPU build."
        )
        return original()

    return _detect_platform_name
