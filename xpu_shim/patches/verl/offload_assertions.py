"""FSDP1 parameters can be offloaded on torch below 2.11, where XPU tensors' addresses cannot be read."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.offload_assertions",
    targets=("verl.utils.fsdp_utils:offload_fsdp_model_to_cpu",),
    why=(
        "The function compares addresses in an assertion. On torch below 2.11 `data_ptr()` of an XPU tensor can "
        "overflow, and param_offload=True stops with an OverflowError or AssertionError although nothing is wrong."
    ),
    how="The same function without its assertions.",
    upstream=("https://github.com/pytorch/pytorch/issues/135567",),
    remove_when="torch 2.10 is no longer supported.",
    versions={"verl": ("0.7.1", "0.10"), "torch": ("2.6", "2.11")},
    processes=("driver", "worker"),
)


def apply(install: Install) -> None:
    from xpu_shim.models.offload import without_assertions

    install.replace("offload_fsdp_model_to_cpu", without_assertions)
