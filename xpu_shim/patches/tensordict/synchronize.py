"""tensordict before 0.10 waits for copies from XPU to host memory."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="tensordict.synchronize",
    targets=("tensordict.base:TensorDictBase._sync_all",),
    why=(
        "`TensorDict.to('cpu')` copies without blocking and waits afterwards, but only for CUDA and MPS. With XPU the "
        "host reads tensors whose copy is not finished: now and then wrong log-probabilities, never an error."
    ),
    how="After what upstream does, the XPU is waited for, if this process uses one.",
    upstream=("https://github.com/pytorch/tensordict/issues/725",),
    remove_when="tensordict 0.9 is no longer supported: 0.10 waits for any accelerator.",
    versions={"tensordict": ("0.7", "0.10")},
)


def apply(install: Install) -> None:
    install.replace("TensorDictBase._sync_all", also_xpu)


def also_xpu(original):
    def _sync_all(self):
        original(self)
        import torch

        # Not `is_available()`, which opens a context: where nothing was initialised, nothing can be under way.
        if torch.xpu.is_initialized() and not torch.compiler.is_compiling():
            torch.xpu.synchronize()

    return _sync_all
