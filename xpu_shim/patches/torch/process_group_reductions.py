"""`torch.distributed` reductions of xpu tensors from Python: no AVG, and MIN and MAX that mean what they say."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="torch.process_group_reductions",
    targets=(
        "torch.distributed.distributed_c10d:ProcessGroup.allreduce",
        "torch.distributed.distributed_c10d:ProcessGroup.allreduce_coalesced",
        "torch.distributed.distributed_c10d:ProcessGroup.reduce",
        "torch.distributed.distributed_c10d:ProcessGroup.reduce_scatter",
        "torch.distributed.distributed_c10d:ProcessGroup._reduce_scatter_base",
        "torch.distributed.distributed_c10d:ProcessGroup.reduce_scatter_single?",
        "torch.distributed.distributed_c10d:ProcessGroup.reduce_scatter_tensor_coalesced",
        "torch.distributed.distributed_c10d:ProcessGroup.reduce_scatter_single_coalesced?",
        "torch.distributed.distributed_c10d:ProcessGroup._start_coalescing",
        "torch.distributed.distributed_c10d:ProcessGroup._end_coalescing",
        "torch.distributed.distributed_c10d:ProcessGroupXCCL.allreduce?",
        "torch.distributed.distributed_c10d:ProcessGroupXCCL.allreduce_coalesced?",
        "torch.distributed.distributed_c10d:ProcessGroupXCCL.reduce?",
        "torch.distributed.distributed_c10d:ProcessGroupXCCL.reduce_scatter?",
        "torch.distributed.distributed_c10d:ProcessGroupXCCL._reduce_scatter_base?",
    ),
    why=(
        "verl averages losses, validation losses and timings with `torch.distributed.all_reduce(..., op=AVG)`: oneCCL "
        "aborts with `average operation is not supported for the scheduler path` or, on older stacks, divides small "
        "messages twice. Some stacks return the sum for MIN and MAX, which makes verl's dynamic batch sizes disagree "
        "between ranks (`max_group_token_len ... > max_token_len`) or split micro batches wrongly."
    ),
    how=(
        "Wraps the reducing methods of the ProcessGroup class, below every function of torch.distributed and "
        "torch.distributed.nn, and those of the xccl backend for whoever calls it directly. AVG and PREMUL_SUM on xpu "
        "tensors become SUM and a scaling. MIN, MAX and PRODUCT are tried once per process group on two elements at "
        "first use, and computed on the CPU half of the group only if they come out wrong. SUM and other devices pass "
        "with the same arguments and the same Work."
    ),
    upstream=(
        "https://github.com/intel/torch-xpu-ops/issues/2361",
        "https://github.com/intel/torch-xpu-ops/issues/3020",
        "https://github.com/intel/torch-xpu-ops/issues/3059",
        "https://github.com/uxlfoundation/oneCCL/issues/195",
    ),
    remove_when=(
        "no supported oneCCL refuses or miscomputes AVG, MIN or MAX. Where MIN and MAX are right, the check finds it "
        "and leaves them alone."
    ),
    versions={"torch": ("2.11", "2.16")},
    # Not in vLLM processes: they only sum, and a decode step is a hundred of these calls.
    processes=("driver", "worker"),
)


def apply(install: Install) -> None:
    from xpu_shim.collectives import process_group, requests
    from xpu_shim.collectives.settings import averages_by_sum

    averages = averages_by_sum()
    for name in ("ProcessGroup", "ProcessGroupXCCL"):
        owner = getattr(install.module, name, None)
        for form in requests.FORMS:
            if hasattr(owner, form.method):
                replace(install, owner, form.method, process_group.reduction(form, averages))  # type: ignore[arg-type]
    owner = install.module.ProcessGroup
    replace(install, owner, "_start_coalescing", process_group.start_coalescing)
    replace(install, owner, "_end_coalescing", process_group.end_coalescing)


def replace(install: Install, owner: type, method: str, make) -> None:
    """Replace a method, under a name by which it can be found: the extension's methods have none that pickles."""
    install.replace(f"{owner.__name__}.{method}", make)
    replacement = vars(owner)[method]
    replacement.__module__, replacement.__qualname__ = install.module.__name__, f"{owner.__name__}.{method}"
