"""vLLM's profiling counts what vLLM took, not what others on the card gave back."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="vllm.memory_profiling",
    # gpu_worker copies the name when it is imported, which is after this module was executed.
    targets=("vllm.utils.mem_utils:memory_profiling",),
    why=(
        "vLLM takes it that nobody else on the card moves while it profiles. A trainer that offloads meanwhile makes "
        "free memory grow: `AssertionError: Error in memory profiling. Initial free memory 10.1 GiB, current free "
        "memory 14.2 GiB`. A smaller release is not noticed: the KV cache grows by what the trainer gave back and "
        "takes back later, and then the trainer runs out of memory. From 0.29 vLLM copes on ROCm only "
        "(`maybe_rocm_profiling_fallback`), and only with what it notices."
    ),
    how=(
        "The result is corrected to this process's own consumption: the kernel's account of the process, else what "
        "its allocator took and what grew outside it. The assertion then holds and the KV cache has the right size."
    ),
    upstream=(
        "https://github.com/vllm-project/vllm/issues/56830",
        "https://github.com/vllm-project/vllm/pull/33358",
        "https://github.com/vllm-project/vllm/pull/36720",
    ),
    remove_when="vLLM measures its own process's consumption on XPU (56830).",
    versions={"vllm": ("0.17", "0.34")},
    processes=("worker", "rollout"),
)


def apply(install: Install) -> None:
    install.replace("memory_profiling", own_consumption)


def own_consumption(original):
    import contextlib

    @contextlib.contextmanager
    def memory_profiling(*args, **kwargs):
        try:
            with original(*args, **kwargs) as result:
                yield result
        except Exception as error:
            from xpu_shim.doctor.explain import explain

            explain(error)
            raise
        from xpu_shim.rollout import profiling

        profiling.correct(result)

    return memory_profiling
