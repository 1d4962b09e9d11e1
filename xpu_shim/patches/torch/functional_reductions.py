"""Functional collectives, DTensor and compiled code on xpu: no "avg", and "min" and "max" that mean what they say."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="torch.functional_reductions",
    # The Python doors to the kernels that get an override; the functions themselves stay as they are.
    targets=(
        "torch.distributed._functional_collectives:all_reduce",
        "torch.distributed._functional_collectives:all_reduce_coalesced",
        "torch.distributed._functional_collectives:reduce_scatter_tensor",
        "torch.distributed._functional_collectives:reduce_scatter_tensor_coalesced",
    ),
    why=(
        'A DTensor mean, any redistribution of `Partial("avg")`, `all_reduce(..., "avg")` of functional collectives '
        "and every compiled `all_reduce(op=AVG)` reach the process group in C++, past every Python method: "
        "`average operation is not supported for the scheduler path`."
    ),
    how=(
        "Registers kernels for the reducing operators of `_c10d_functional` at the XPU dispatch key. They hand sums to "
        "torch's own kernels, turn averages into a sum and a division, and check min, max and product as the process "
        "group methods do. Meta and CPU kernels, and so tracing, are untouched."
    ),
    upstream=(
        "https://github.com/intel/torch-xpu-ops/issues/2361",
        "https://github.com/uxlfoundation/oneCCL/issues/195",
    ),
    remove_when="no supported oneCCL refuses or miscomputes AVG, MIN or MAX.",
    versions={"torch": ("2.11", "2.16")},
    processes=("driver", "worker"),
)


def apply(install: Install) -> None:
    from xpu_shim.collectives import functional
    from xpu_shim.collectives.settings import averages_by_sum

    install.on_remove(functional.install(averages_by_sum()))
