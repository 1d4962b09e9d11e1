"""verl's own functions at both ends of a sync, of any release: the rollout worker's and the trainer's.

Run in a process of their own (see `peers`). What is not there: vLLM, Ray, a model. The rollout's call, a Ray ObjectRef in a
real run, is one of a thread pool here, which has the two things it is used for: it can be awaited, and has a `future()`.
"""

from __future__ import annotations

import asyncio
import sys
import time
import types
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import actions
import torch
import upstream

ROLLOUT = "verl.workers.rollout.vllm_rollout"
ADAPTER = types.SimpleNamespace(
    server_handle=None, rollout_rank=0, replica_rank=1, node_rank=0, use_shm=True, _has_server=True
)
CONFIG = types.SimpleNamespace(checkpoint_engine=types.SimpleNamespace(update_weights_bucket_megabytes=1))


def load(way: str, *patches: str):
    """With "shim", apply the patches; those on other modules than the transfer's need `upstream.parts` first."""
    if way == "shim":
        from xpu_shim.core.apply import apply_patch

        for patch in patches:
            apply_patch(f"verl.weight_sync_{patch}")


def worker(say, way: str, endpoint: str, release: str, prepare: Callable, syncs: int = 1):
    """A rollout worker that is asked to receive an adapter; before it makes a receiver it calls `prepare(say)`."""
    upstream.load(release)
    platforms = types.ModuleType("vllm.platforms")
    platforms.current_platform = types.SimpleNamespace(device_type="cpu")
    sys.modules.setdefault("vllm", types.ModuleType("vllm"))
    sys.modules["vllm.platforms"] = platforms
    extension = upstream.parts(
        f"{ROLLOUT}.utils",
        "vLLMColocateWorkerExtension",
        {"update_weights_from_ipc"},
        VLLM_LORA_INT_ID=1,
        is_fp8_model=lambda config: False,
        is_quantized_model=lambda config: False,
    )
    load(way, "receiver", "worker")

    class Worker(extension):
        device = torch.device("cpu")
        model_runner = types.SimpleNamespace(vllm_config=None, model=None)
        _is_qat_model = _is_modelopt_qat = False

        def remove_lora(self, number):
            prepare(say)

        def _iter_all_models(self):
            return []

        def _get_zmq_handle(self):
            return endpoint

        def _update_weights(self, weights, **_):
            say([name for name, _ in (weights.items() if isinstance(weights, dict) else weights)])

    for _ in range(syncs):
        Worker().update_weights_from_ipc(peft_config={"r": 8}, base_sync_done=True, use_shm=True)


class Call:
    """What a server's method returns to the trainer."""

    def __init__(self, future: Future) -> None:
        self._future = future

    def future(self) -> Future:
        return self._future

    def __await__(self):
        return asyncio.wrap_future(self._future).__await__()


def trainer(say, way: str, endpoint: str, release: str, call: Callable[[], Any], weights: Callable | None = None):
    """A training rank that updates the rollout's weights; the rollout's server does `call()`. The seconds it took."""
    sender = upstream.load(release).BucketedWeightSender
    adapter = upstream.parts(
        f"{ROLLOUT}.vllm_rollout",
        "ServerAdapter",
        {"update_weights", "_execute_method", "_ensure_server_handle"},
        BucketedWeightSender=sender,
        time=time,
    )
    load(way, "sender", "call")
    pool = ThreadPoolExecutor(1)

    def remote(method, **_):
        assert method == "update_weights_from_ipc"
        say("called")
        return Call(pool.submit(call))

    this = adapter()
    vars(this).update(
        vars(ADAPTER),
        zmq_handle=endpoint,
        server_handle=types.SimpleNamespace(collective_rpc=types.SimpleNamespace(remote=remote)),
        config=CONFIG,
    )
    asyncio.run(this.update_weights((weights or actions.generated_few)(say)))
