"""`torch.xpu.ipc_collect`, which torch.cuda has and torch.xpu has not."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="torch.xpu_ipc_collect",
    targets=("torch.xpu:ipc_collect?",),
    why=(
        "verl 0.7.1 and 0.8.0 call `get_torch_device().ipc_collect()` after every weight sync, and anything that takes "
        "torch.xpu for a torch.cuda does the same: `AttributeError: module 'torch.xpu' has no attribute 'ipc_collect'` "
        "in the vLLM worker, after which the trainer waits for ever."
    ),
    how=(
        "Adds a function of that name that does nothing: it releases memory shared through CUDA IPC, and XPU tensors "
        "are never shared that way, so there is nothing to release."
    ),
    upstream=(
        "https://github.com/intel/torch-xpu-ops/issues/1678",
        "https://github.com/volcengine/verl/pull/7184",
    ),
    remove_when="torch.xpu has its own ipc_collect, or verl 0.8.0 is no longer supported.",
    versions={"torch": ("2.11", "2.16")},
    processes=("driver", "worker", "rollout"),
)


def probe(module) -> str | None:
    """Upstream is right once the name is there; ours carries a marker and does not count."""
    from xpu_shim.core.install import marker

    existing = getattr(module, "ipc_collect", None)
    return "torch.xpu has ipc_collect" if existing is not None and marker(existing) != PATCH.id else None


def apply(install: Install) -> None:
    def ipc_collect() -> None:
        """Release memory shared with other processes: there is none, XPU tensors are not shared by handle."""

    ipc_collect.__module__, ipc_collect.__qualname__ = "torch.xpu", "ipc_collect"
    install.add("ipc_collect", ipc_collect)
