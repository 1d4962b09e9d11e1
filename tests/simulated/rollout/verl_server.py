"""Run as a program: one verl release's real `vLLMHttpServer`, up to the engine, with a real vLLM.

    python verl_server.py MODEL_FOLDER '{"patches": [...], "overrides": [...], "assigned": "1", "vllm": "/path"}'

verl's own code makes the server, vLLM's arguments and vLLM's configuration; the engine itself is a stand-in that notes
what it is asked (starting one takes a minute; test_server.py does). Stdout's last line is a JSON object with the
release, the executor, sleep mode, the environment the engine would inherit, and which calls reached the engine.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import types

from card import StandIns
from server_actor import configuration

PATCHES = ("verl.rollout_environment", "verl.rollout_executor", "verl.rollout_sleep", "vllm.config_errors")
VARIABLES = ("ONEAPI_DEVICE_SELECTOR", "ZE_AFFINITY_MASK", "XPU_SHIM_PROCESS", "VLLM_WORKER_MULTIPROC_METHOD")


class Engine:
    """Stands for vLLM's AsyncLLM: notes the configuration and every call."""

    def __init__(self, config) -> None:
        self.config, self.calls = config, []

    def __getattr__(self, name):
        async def call(*args, **kwargs):
            # verl 0.7.1 has the workers sleep by such a call, later releases the engine itself.
            asked = str(args[0]) if name == "collective_rpc" and args else name
            self.calls.append(asked)
            if name == "collective_rpc" and asked not in ("sleep", "wake_up"):
                raise Started
            return None

        return call


class Started(Exception):
    """The server has its engine; what follows is HTTP."""


async def main(model: str, options: dict) -> dict:
    import ray

    if options.get("vllm"):
        sys.path.insert(0, options["vllm"])
        sys.meta_path.append(StandIns())  # for what an older release imports and the installed one does not need
    # A server outside an actor: what it asks Ray is who and where it is.
    ray.util.get_node_ip_address = lambda: "127.0.0.1"
    ray.get_runtime_context = lambda: types.SimpleNamespace(get_job_id=lambda: "01000000")
    import verl
    import verl.workers.rollout.vllm_rollout.vllm_async_server as module
    from verl.workers.rollout.replica import RolloutMode

    from xpu_shim.core.apply import apply_patch

    for patch in options.get("patches", ()):
        apply_patch(patch)
    engines: list[Engine] = []

    def start(vllm_config, **_):
        engines.append(Engine(vllm_config))
        return engines[-1]

    module.AsyncLLM = types.SimpleNamespace(from_vllm_config=start)
    result: dict = {"version": verl.__version__}
    config = configuration(model, options.get("overrides", []))
    try:
        server = module.vLLMHttpServer(
            config=config.rollout,
            model_config=config.model,
            rollout_mode=RolloutMode.HYBRID,
            workers=[],
            replica_rank=0,
            node_rank=0,
            gpus_per_node=1,
            nnodes=1,
            cuda_visible_devices=options.get("assigned", "0"),
        )
        address, port, rpc_port = server.get_master_address()
        await server.launch_server(master_address=address, master_port=port, dp_rpc_port=rpc_port)
    except Started:
        pass
    except Exception as error:
        return {**result, "error": f"{type(error).__name__}: {error}"}
    (engine,) = engines
    server.engine = engine
    engine.calls.clear()
    await server.sleep()
    try:
        await server.wake_up()
    except ValueError as error:  # in verl 0.7.1 the trainer's side wakes a server it shares cards with
        if "not support rollout_mode" not in str(error):
            raise
    result["calls"] = engine.calls
    result["executor"] = engine.config.parallel_config.distributed_executor_backend
    result["sleep_mode"] = engine.config.model_config.enable_sleep_mode
    result["config"] = {name: getattr(server.config, name) for name in ("enable_sleep_mode", "free_cache_engine")}
    result["env"] = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    return result


if __name__ == "__main__":
    result = asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
    sys.stdout.write("\n" + json.dumps(result) + "\n")
