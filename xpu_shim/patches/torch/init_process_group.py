"""Process groups on Intel GPUs: pinned first, CPU tensors served too, never bound to a device, no device shared."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="torch.init_process_group",
    targets=("torch.distributed.distributed_c10d:init_process_group",),
    why=(
        "verl up to 0.9.0 makes the group with bare xccl (SFT, 0.7.1's critic): the first collective on a CPU tensor "
        "fails with `No backend type associated with device type cpu`. It selects the device after the group is "
        "made: until then every rank is on card 0, where FSDP2 hangs. Bound to a device, xccl cannot make a mesh: "
        "`No backend for the parent process group or its backend does not support splitting`. And when ranks share a "
        "card nothing says so."
    ),
    how=(
        "On xpu: selects the rank's device before the group is made; bare xccl becomes cpu:gloo,xpu:xccl; "
        "`device_id` is dropped. After the default group exists, ranks exchange device uuids through its store, and "
        "a shared device is an error with a table of rank, host, index, uuid and mask "
        "(XPU_SHIM_ALLOW_SHARED_DEVICE=1 allows it)."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/issues/186548",
        "https://github.com/intel/torch-xpu-ops/issues/3233",
        "https://github.com/volcengine/verl/pull/7512",
        "https://github.com/saforem2/ezpz/issues/149",
        "https://github.com/volcengine/verl/pull/7917",
    ),
    remove_when="verl pins first and always asks for a composite group, and ProcessGroupXCCL can split.",
    versions={"torch": ("2.11", "2.16")},
    # Not in rollout processes: vLLM selects devices itself, and its replicas may share a card with the trainer.
    processes=("driver", "worker"),
)

COMPOSITE = "cpu:gloo,xpu:xccl"


def apply(install: Install) -> None:
    install.replace("init_process_group", pinned_group)


def pinned_group(original):
    import inspect

    signature = inspect.signature(original)

    def init_process_group(*args, **kwargs):
        bound = signature.bind_partial(*args, **kwargs)
        if not on_xpu(bound.arguments):
            return original(*args, **kwargs)
        from xpu_shim.devices import pinning, sharing

        try:
            pinning.pin()
            adapt(bound.arguments)
            result = original(*bound.args, **bound.kwargs)
            sharing.check_default_group()
        except Exception as error:
            from xpu_shim.doctor.explain import explain

            explain(error)
            raise
        return result

    return init_process_group


def on_xpu(arguments):
    """Whether the group asked for is for XPU tensors."""
    import torch

    if not torch.xpu._is_compiled():
        return False
    backend = arguments.get("backend")
    if backend is not None:
        return "xccl" in str(backend).lower()
    # With no backend torch takes the default of every device, which for an XPU build includes xccl.
    return not torch.cuda.is_available()


def adapt(arguments):
    """Change the arguments of one call in place: a composite backend, no bound device."""
    from xpu_shim.core.log import logger

    log = logger("xpu_shim.devices")
    backend = arguments.get("backend")
    if backend is not None and str(backend).lower() in ("xccl", "xpu:xccl") and arguments.get("pg_options") is None:
        arguments["backend"] = COMPOSITE
        log.info("backend %s becomes %s", backend, COMPOSITE)
    if arguments.get("device_id") is not None:
        log.info("device_id=%s is dropped: xccl groups bound to a device cannot be split", arguments["device_id"])
        del arguments["device_id"]
