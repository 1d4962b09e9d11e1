"""`profiler.tool=torch_memory` in verl 0.7.1 records the allocations of an XPU."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.profiler_memory",
    targets=("verl.utils.memory_utils:is_cuda_available?",),
    why=(
        "verl 0.7.1 records no allocation history: `[memory_visualize] Memory history recording is only available on "
        "CUDA devices`, and the snapshots it writes are empty. torch.xpu.memory can record it."
    ),
    how=(
        "That module's `is_cuda_available`, which it asks before it records, is True where torch can use XPUs; the "
        "recording itself already goes through verl's device module. Newer releases ask the device and need nothing."
    ),
    upstream=("https://docs.pytorch.org/docs/stable/xpu.html",),
    remove_when="verl 0.7.1 is no longer supported.",
    versions={"verl": ("0.7.1", "0.8")},
    required=False,
)


def apply(install: Install) -> None:
    import torch

    from xpu_shim.devices.settings import wants_intel

    if not hasattr(install.module, "is_cuda_available"):
        install.skip("this release asks the device")
    if not wants_intel() or not torch.xpu._is_compiled():
        install.skip("not an Intel platform")
    install.set("is_cuda_available", True)
