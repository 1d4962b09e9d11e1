"""verl asks vLLM to sleep only where vLLM can."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.rollout_sleep",
    targets=(
        "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer.run_server",
        "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer.run_headless",
        "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer.wake_up",
    ),
    why=(
        "verl always asks for sleep mode. vLLM up to 0.22 on Intel GPUs, and vLLM on the CPU, refuse to start: "
        "`Value error, Sleep mode is not supported on current platform.` Switched off by hand, verl still sends its "
        "servers to sleep and wakes them (`free_cache_engine`), which needs an allocator that is not there "
        "(`AssertionError: cumem allocator is not available`)."
    ),
    how=(
        "Where the platform vLLM picked, its version or its allocator cannot sleep, `enable_sleep_mode` and "
        "`free_cache_engine` are off in the server, waking does nothing, and one warning says so. Kept on elsewhere."
    ),
    upstream=(
        "https://github.com/vllm-project/vllm/pull/37149",
        "https://github.com/intel/llm-scaler/issues/568",
    ),
    remove_when="verl asks `current_platform.is_sleep_mode_available()` before it asks for sleep mode.",
    versions={"verl": ("0.7.1", "0.10")},
    processes=("worker", "rollout"),
)


def apply(install: Install) -> None:
    install.replace("vLLMHttpServer.run_server", agreed)
    install.replace("vLLMHttpServer.run_headless", agreed)
    install.replace("vLLMHttpServer.wake_up", only_if_asleep)


def agreed(original):
    async def run(self, args):
        from xpu_shim.rollout import sleep

        sleep.agree(self, args)
        return await original(self, args)

    return run


def only_if_asleep(original):
    async def wake_up(self, *args, **kwargs):
        from xpu_shim.rollout import sleep

        # The trainer's own config still says that the server sleeps.
        if sleep.never_sleeps(self):
            return None
        return await original(self, *args, **kwargs)

    return wake_up
