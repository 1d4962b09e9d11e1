"""A replica on one device runs its model in the engine's process."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.rollout_executor",
    targets=("verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer.launch_server",),
    why=(
        "verl asks vLLM for the executor `mp` whatever the replica's size. With one device vLLM would need no worker "
        "process: the extra one costs a second Level Zero context on the card and its share of host memory, and "
        "cards of 24 GB run out of memory (`UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY`)."
    ),
    how=(
        "With tensor, pipeline and data parallel size 1 on one node the executor is `uni`, unless "
        "`engine_kwargs.vllm.distributed_executor_backend` names one."
    ),
    upstream=("https://github.com/kahlun/verl/pull/1",),
    remove_when="verl leaves the choice of executor to vLLM.",
    versions={"verl": ("0.7.1", "0.10")},
    processes=("worker", "rollout"),
    required=False,
)


def apply(install: Install) -> None:
    install.replace("vLLMHttpServer.launch_server", in_process)


def in_process(original):
    async def launch_server(self, *args, **kwargs):
        from xpu_shim.rollout import executor

        executor.choose(self)
        return await original(self, *args, **kwargs)

    return launch_server
