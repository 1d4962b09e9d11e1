"""Which executor vLLM's engine uses: in its own process where one device is enough."""

from __future__ import annotations

from typing import Any

from xpu_shim.core.log import logger

_log = logger("xpu_shim.rollout")

BACKEND = "distributed_executor_backend"


def engine_kwargs(server: Any) -> dict[str, Any]:
    """The user's `engine_kwargs` for vLLM in a verl server's config; a new dict there if there are none."""
    key = server._get_engine_kwargs_key() if hasattr(server, "_get_engine_kwargs_key") else "vllm"
    everything = server.config.engine_kwargs
    if everything.get(key) is None:
        everything[key] = {}
    return everything[key]


def processes(server: Any) -> int:
    """Number of worker processes one engine of the server needs, over all its nodes and data-parallel engines."""
    given = engine_kwargs(server)
    config = server.config
    sizes = (
        given.get("tensor_parallel_size") or config.tensor_model_parallel_size,
        given.get("pipeline_parallel_size") or getattr(config, "pipeline_model_parallel_size", 1),
        given.get("prefill_context_parallel_size") or 1,
        given.get("data_parallel_size") or getattr(config, "data_parallel_size", 1),
        server.nnodes,
    )
    product = 1
    for size in sizes:
        product *= int(size or 1)
    return product


def choose(server: Any) -> None:
    """Ask for the executor vLLM itself picks for one device, unless the user named one in `engine_kwargs`."""
    given = engine_kwargs(server)
    if given.get(BACKEND) is not None or processes(server) != 1:
        return
    given[BACKEND] = "uni"
    _log.info("replica %s runs its model in the engine's process (executor uni)", server.replica_rank)
