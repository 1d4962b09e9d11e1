"""`profiler.tool=vtune`, and tools from elsewhere, in vLLM rollout servers and their engine processes."""

from __future__ import annotations

import sys

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.profiler_rollout",
    targets=(
        "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer.start_profile",
        "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer.stop_profile",
        "verl.workers.rollout.vllm_rollout.utils:vLLMColocateWorkerExtension.xpu_shim_profile?",
    ),
    why=(
        "A rollout server drops every tool but torch and npu: `agent loop only support torch and npu profiler, got "
        "vtune`. Nothing of a rollout is collected."
    ),
    how=(
        "When it starts, the server gets the profiler of its configuration, as training workers do, and starts and "
        "stops VTune's collection in its engine processes through a method added to verl's worker extension of vLLM."
    ),
    upstream=("https://github.com/verl-project/verl/pull/7917",),
    remove_when="verl's rollout servers accept every profiler, and pass start and stop on to the engine processes.",
    versions={"verl": ("0.7.1", "0.10")},
    required=False,
)


def apply(install: Install) -> None:
    if install.module.__name__.endswith(".utils"):
        install.add("vLLMColocateWorkerExtension.xpu_shim_profile", xpu_shim_profile)
        return
    install.replace("vLLMHttpServer.start_profile", start_engines)
    install.replace("vLLMHttpServer.stop_profile", stop_engines)


def xpu_shim_profile(self, begin):
    """Called through vLLM's `collective_rpc`, in each engine process."""
    from xpu_shim.profiling.rollout import profile_engine

    profile_engine(self, begin)


def start_engines(original):
    async def start_profile(self, **kwargs):
        from xpu_shim.profiling import rollout

        if rollout.tool_of(self) is None:
            await original(self, **kwargs)
        else:
            await rollout.start(self, sys.modules[original.__module__], **kwargs)

    return start_profile


def stop_engines(original):
    async def stop_profile(self):
        from xpu_shim.profiling import rollout

        if rollout.tool_of(self) is None:
            await original(self)
        else:
            await rollout.stop(self, sys.modules[original.__module__])

    return stop_profile
