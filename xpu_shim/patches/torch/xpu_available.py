"""Asking whether there is an XPU does not open the devices."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="torch.xpu_available",
    targets=("torch.xpu:is_available",),
    why=(
        "transformers, accelerate and others ask `torch.xpu.is_available()` while they are imported. Without pyzes (and "
        "before torch 2.13 always) torch opens every visible device to answer: in ranks before they are pinned, so that a "
        "mask set afterwards does nothing and all of them compute on card 0, and in the driver and the many workers that "
        "use no device, each of which then holds a context on every card."
    ),
    how=(
        "As long as this process has not opened its devices, the answer is True if sysfs shows an Intel GPU that "
        "ZE_AFFINITY_MASK leaves visible. In every other case torch answers as before."
    ),
    upstream=("https://github.com/intel/torch-xpu-ops/issues/2089",),
    remove_when="every supported torch counts devices without opening them, pyzes or not.",
    versions={"torch": ("2.11", "2.16")},
    processes=("driver", "worker", "rollout"),
)


def apply(install: Install) -> None:
    install.replace("is_available", without_opening)


def without_opening(original):
    def is_available() -> bool:
        from xpu_shim.devices.early import certainly_available

        return certainly_available() or original()

    return is_available
