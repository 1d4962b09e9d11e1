"""FSDP2, HSDP and `replicate` reduce gradients by SUM on xpu."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="torch.fsdp2_sum",
    targets=("torch.distributed.fsdp._fully_shard._fsdp_collectives:_get_gradient_divide_factors",),
    why=(
        "FSDP2 averages float32 and bfloat16 gradients with ReduceOp.AVG. oneCCL refuses it on its scheduler path, in "
        "the middle of backward: `average operation is not supported for the scheduler path`. Which path a collective "
        "takes is not the user's choice: CCL_TOPO_ALGO=0, CCL_ALLREDUCE=ring, no peer access, sub-communicators and "
        "some dtypes all lead there. Older stacks also divided small averages twice."
    ),
    how=(
        "Makes `_get_gradient_divide_factors` answer SUM and a division for xpu, with the arithmetic torch has for "
        "another device that only sums. One function for every module, so nothing has to be set on the model "
        "(`set_force_sum_reduction_for_comms` does not reach submodules). A gradient divide factor with nothing to "
        "reduce-scatter is divided by once, where torch's forced SUM divides twice. `XPU_SHIM_REDUCE_AVG=native` "
        "leaves AVG to oneCCL."
    ),
    upstream=(
        "https://github.com/intel/torch-xpu-ops/issues/2361",
        "https://github.com/intel/torch-xpu-ops/issues/3020",
        "https://github.com/uxlfoundation/oneCCL/issues/195",
    ),
    remove_when="torch answers SUM for xpu itself (then it retires), or no supported oneCCL has the refusal.",
    versions={"torch": ("2.11", "2.16")},
    processes=("driver", "worker"),
)


def probe(module) -> str | None:
    """Retire once torch's own answer for xpu is SUM."""
    from xpu_shim.collectives.gradient_factors import already_sums
    from xpu_shim.core.install import marker

    factors = module._get_gradient_divide_factors
    return "torch sums on xpu by itself" if marker(factors) != PATCH.id and already_sums(factors) else None


def apply(install: Install) -> None:
    from xpu_shim.collectives.gradient_factors import summing
    from xpu_shim.collectives.settings import averages_by_sum

    if not averages_by_sum():
        install.skip("XPU_SHIM_REDUCE_AVG=native")
    install.replace("_get_gradient_divide_factors", summing)
