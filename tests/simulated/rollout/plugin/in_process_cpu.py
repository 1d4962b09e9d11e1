"""A vLLM platform for tests: the CPU, which runs its model in the engine's process if asked, as GPUs do.

vLLM's own CPU platform turns the executor `uni` back into `mp`, for the sake of thread placement.
"""

from __future__ import annotations


def platform() -> str:
    return "in_process_cpu.InProcessCpu"


def __getattr__(name: str):
    # vLLM asks for the plugin before its own platform can be imported.
    if name != "InProcessCpu":
        raise AttributeError(name)
    from vllm.platforms.cpu import CpuPlatform

    class InProcessCpu(CpuPlatform):
        @classmethod
        def check_and_update_config(cls, vllm_config) -> None:
            wanted = vllm_config.parallel_config.distributed_executor_backend
            super().check_and_update_config(vllm_config)
            if wanted == "uni":
                vllm_config.parallel_config.distributed_executor_backend = wanted

    globals()[name] = InProcessCpu
    return InProcessCpu
