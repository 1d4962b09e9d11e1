"""`torch.multiprocessing` says that an XPU tensor cannot be handed to another process, instead of half doing it."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="torch.reduce_tensor",
    targets=("torch.multiprocessing.reductions:reduce_tensor",),
    why=(
        "`reduce_tensor` knows device handles for CUDA only. For an XPU tensor it silently answers with the rebuild "
        "function of host tensors and three arguments, so code made for CUDA fails far away: verl's `rebuild_ipc` with "
        "`IndexError: list assignment index out of range`, a queue with `_share_fd_: only available on CPU`."
    ),
    how=(
        "Raises a RuntimeError that names the tensor's device and shape and the ways out, before anything is sent. A "
        "copy through shared memory would be possible, but what is asked for here is memory both processes see."
    ),
    upstream=(
        "https://github.com/intel/torch-xpu-ops/issues/1678",
        "https://github.com/pytorch/pytorch/blob/main/torch/multiprocessing/reductions.py",
    ),
    remove_when="torch shares XPU memory between processes.",
    versions={"torch": ("2.11", "2.16")},
    processes=("driver", "worker", "rollout"),
    required=False,
)


def probe(module) -> str | None:
    """Upstream is right once it has a rebuild function for XPU tensors."""
    return "torch rebuilds XPU tensors" if hasattr(module, "rebuild_xpu_tensor") else None


def apply(install: Install) -> None:
    original = install.module.reduce_tensor
    install.replace("reduce_tensor", refuse_xpu)
    # torch.multiprocessing registers the function for queues by value; nothing to do unless it was imported before us.
    replacement, table = install.module.reduce_tensor, ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    held = [kind for kind, function in table.items() if function is original]
    table.update(dict.fromkeys(held, replacement))

    def put_back() -> None:
        table.update({kind: original for kind in held if table.get(kind) is replacement})

    install.on_remove(put_back)


def refuse_xpu(original):
    def reduce_tensor(tensor):
        if tensor.device.type == "xpu":
            raise RuntimeError(
                f"a tensor of shape {tuple(tensor.shape)} and {tensor.dtype} on {tensor.device} cannot be handed to another "
                "process: XPU memory is not shared between processes. Send tensor.cpu() and move it back there; for "
                "verl's weight sync, leave use_shm=True (verl's platform says that IPC is not supported)."
            )
        return original(tensor)

    return reduce_tensor
