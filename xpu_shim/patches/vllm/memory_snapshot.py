"""vLLM's memory snapshots hold readings that can be right."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="vllm.memory_snapshot",
    targets=("vllm.utils.mem_utils:MemorySnapshot.measure",),
    why=(
        "vLLM believes one reading of the device's memory, and on many drivers that one is wrong: free 0 on an empty "
        "card (`ValueError: Free memory on device xpu:0 (0.0/22.71 GiB) on startup is less than desired GPU memory "
        "utilization`), everything free while memory is allocated (a KV cache that does not fit), a value that never "
        "moves, another total, or a `RuntimeError`."
    ),
    how=(
        "A reading is measured by what is certain (what this process allocated, the device's size, the last reading, "
        "the kernel's account of who holds the card); one that cannot be right is replaced by the next source's, in "
        "the end by arithmetic, with one warning that gives the reason. On other devices nothing changes."
    ),
    upstream=(
        "https://github.com/vllm-project/vllm/pull/53990",
        "https://github.com/vllm-project/vllm/pull/49273",
        "https://github.com/vllm-project/vllm/issues/47016",
        "https://github.com/pytorch/pytorch/issues/161381",
        "https://github.com/vllm-project/vllm-omni/pull/5330",
    ),
    remove_when="vLLM rejects implausible readings itself (53990, 49273), or no supported driver gives them.",
    versions={"vllm": ("0.17", "0.34")},
    processes=("worker", "rollout"),
)


def apply(install: Install) -> None:
    install.replace("MemorySnapshot.measure", believed)


def believed(original):
    def measure(self):
        from xpu_shim.rollout import snapshots

        snapshots.measure(self, original)

    return measure
