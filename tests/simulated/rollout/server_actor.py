"""Run as a program: verl's real `vLLMHttpServer` with the real vLLM of this environment, in a Ray actor, as JSON.

    python server_actor.py MODEL_FOLDER '{"overrides": [...], "env": {...}, "sleep": true, "assigned": "0"}'

The server is made the way `vLLMReplica.launch_servers` makes it, from verl's own default configuration. Stdout's last
line is `{"processes": [...], "tokens": [...], ...}` or `{"error": text}` if an actor call failed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

#: What a machine with two cores and no GPU needs; nothing here is about Intel GPUs.
SMALL = (
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.rollout.max_model_len=128",
    "actor_rollout_ref.rollout.max_num_seqs=4",
    "actor_rollout_ref.rollout.max_num_batched_tokens=256",
    "actor_rollout_ref.rollout.prompt_length=32",
    "actor_rollout_ref.rollout.response_length=8",
    "actor_rollout_ref.rollout.enforce_eager=True",
    "actor_rollout_ref.rollout.load_format=auto",
    "actor_rollout_ref.rollout.dtype=float32",  # vLLM's bfloat16 kernels need instructions not every machine has
)


def configuration(model: str, overrides: list[str]):
    import verl.trainer
    from hydra import compose, initialize_config_dir

    folder = os.path.join(next(iter(verl.trainer.__path__)), "config")
    with initialize_config_dir(config_dir=folder, version_base=None):
        config = compose(
            config_name="ppo_trainer", overrides=[*SMALL, f"actor_rollout_ref.model.path={model}", *overrides]
        )
    return config.actor_rollout_ref


def processes_of(server) -> list[dict]:
    """The server's own process and those below it that run vLLM: command line and the environment they began with."""
    import psutil
    import ray

    pid = ray.get(server.__ray_call__.remote(lambda self: __import__("os").getpid()))
    rows = []
    for process in psutil.Process(pid).children(recursive=True):
        command = " ".join(process.cmdline())
        if "resource_tracker" in command:
            continue
        environment = process.environ()
        rows.append(
            {
                "name": process.name(),
                "command": command[:80],
                "env": {
                    name: environment[name]
                    for name in ("ONEAPI_DEVICE_SELECTOR", "ZE_AFFINITY_MASK", "XPU_SHIM_PROCESS", "XPU_SHIM_ARMED")
                    if name in environment
                },
            }
        )
    return rows


async def main(model: str, options: dict) -> dict:
    import ray
    from verl.workers.rollout.replica import RolloutMode
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

    config = configuration(model, options.get("overrides", []))
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    server = (
        ray.remote(vLLMHttpServer)
        .options(runtime_env={"env_vars": options.get("env", {})}, max_concurrency=8)
        .remote(
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
    )
    result: dict = {}
    try:
        address, port, rpc_port = await server.get_master_address.remote()
        await server.launch_server.remote(master_address=address, master_port=port, dp_rpc_port=rpc_port)
        result["processes"] = processes_of(server)
        result["tokens"] = await generate(server, "first")
        if options.get("sleep"):
            await server.sleep.remote()
            await server.wake_up.remote(tags=["weights"])
            await server.wake_up.remote(tags=["kv_cache"])
            result["after_sleep"] = await generate(server, "second")
        rollout = await server.get_rollout_config.remote()
        result["config"] = {name: rollout[name] for name in ("enable_sleep_mode", "free_cache_engine")}
        report = server.__ray_call__.remote(lambda self: __import__("xpu_shim").status())
        result["patches"] = {
            name: row["state"]
            for name, row in (await report)["patches"].items()
            if name.startswith(("verl.rollout", "vllm."))
        }
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {error}"
    finally:
        ray.shutdown()
    return result


async def generate(server, request: str) -> list[int]:
    output = await server.generate.remote([5, 6, 7], {"temperature": 0.0, "max_tokens": 4}, request)
    return list(output.token_ids)


if __name__ == "__main__":
    result = asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
    sys.stdout.write("\n" + json.dumps(result) + "\n")
