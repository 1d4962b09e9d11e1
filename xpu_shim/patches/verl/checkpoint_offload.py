"""Checkpoints of FSDP1 models are gathered in host memory on XPU too."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.checkpoint_offload",
    targets=("verl.utils.checkpoint.fsdp_checkpoint_manager:is_cuda_available",),
    why=(
        "FSDPCheckpointManager moves sharded state dicts to host memory only where CUDA is. On XPU saving and loading "
        "keep a second copy of the weights on the device, and a run that fits runs out of memory at "
        "its first checkpoint."
    ),
    how="The flag is set in this one module, where it decides nothing else.",
    remove_when="the manager offloads on every device.",
    versions={"verl": ("0.7.1", "0.10")},
    processes=("driver", "worker"),
)


def apply(install: Install) -> None:
    # Only this module's name: what it holds is `False`, which every other module holds too.
    install.late = False
    install.set("is_cuda_available", True)
