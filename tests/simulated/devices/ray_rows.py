"""Run as a program: one Ray session, several rows of actors, and where each actor sat, as JSON.

    python ray_rows.py '{"init": {...}, "rows": [{"name": ..., "actors": 4, "kind": ..., "env": {...}}, ...]}'

Kinds of actors: "worker" is verl's `Worker` with one GPU, started as verl starts it; "cpu" is the same without a GPU;
"own" is an actor of the user's with one GPU that knows nothing of verl.

Stdout's last line is `{"nodes": {"GPU": 4.0}, "rows": {name: [seat, ...]}}`; a row that failed is `{"error": text}`.
"""

from __future__ import annotations

import json
import os
import sys

#: Seconds a row may take: starting four workers is most of it.
LIMIT = 180

#: Ray's limit below which it does not go (bytes).
OBJECT_STORE = 80 * 1024**2


def probe_early() -> None:
    """What a user's set-up hook, or dpctl, does to a worker: initialise the device before Ray writes a mask."""
    if os.environ.get("PROBE_EARLY") == "1":
        import torch

        torch.xpu.init()


def platform() -> dict:
    """What verl takes this process for, asked without using the device."""
    import torch
    from verl.plugin.platform import get_platform
    from verl.utils import device

    p = get_platform()
    return {
        "platform": [p.vendor_name, p.device_name, p.communication_backend_name(), p.ray_resource_name()],
        "functions": [device.get_device_name(), device.get_nccl_backend(), device.get_resource_name()],
        "ipc": [p.is_ipc_supported(), device.is_support_ipc()],
        "available": p.is_available(),
        "module": type(p).__module__,
        "initialised": torch.xpu.is_initialized(),
    }


def seat() -> dict:
    """Where code that names no index computes."""
    import ray
    import torch

    tensor = torch.ones(2, device="xpu")
    return {
        "uuid": str(torch.xpu.get_device_properties(tensor.device.index).uuid),
        "index": torch.xpu.current_device(),
        "count": torch.xpu.device_count(),
        "mask": os.environ.get("ZE_AFFINITY_MASK"),
        "selector": os.environ.get("ONEAPI_DEVICE_SELECTOR"),
        "cuda": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "ids": ray.get_runtime_context().get_accelerator_ids()["GPU"],
        "local_rank": os.environ.get("LOCAL_RANK"),
        "local_world_size": os.environ.get("LOCAL_WORLD_SIZE"),
        "carried": os.environ.get("CCL_LOG_LEVEL"),
    }


def make_actor(kind: str):
    import ray
    from ray_rows import platform, seat
    from verl.single_controller.base.worker import Worker

    class Probe(Worker):
        """A training worker that says where it is."""

        def answer(self) -> dict:
            return platform() if kind == "cpu" else {**seat(), "platform": platform()}

    class Own:
        """An actor of the user's."""

        def answer(self) -> dict:
            return seat()

    return ray.remote(num_cpus=0, num_gpus=0 if kind == "cpu" else 1)(Own if kind == "own" else Probe)


def run_row(row: dict) -> list[dict] | dict:
    """Start the row's actors as verl does, ask each for its seat, stop them."""
    import ray

    kind, count = row["kind"], row["actors"]
    gpus = ray.cluster_resources().get("GPU", 0)
    if kind != "cpu" and gpus < count:
        return {"error": f"Ray found {gpus:g} GPUs"}
    actor_class, actors = make_actor(kind), []
    for rank in range(count):
        env = dict(row["env"])
        if kind != "own":
            env |= {
                "WORLD_SIZE": str(count),
                "RANK": str(rank),
                "WG_PREFIX": "row",
                "WG_BACKEND": "ray",
                "RAY_LOCAL_WORLD_SIZE": str(count),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": "29511",
            }
        actors.append(actor_class.options(runtime_env={"env_vars": env}).remote())
    try:
        return ray.get([actor.answer.remote() for actor in actors], timeout=LIMIT)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        for actor in actors:
            ray.kill(actor)


def main() -> None:
    plan = json.loads(sys.argv[1])
    import verl  # noqa: F401, I001  (before Ray, as every entry point of verl does)
    import ray
    import torch

    ray.init(
        num_cpus=1,  # Ray starts as many idle workers; actors here need none
        object_store_memory=OBJECT_STORE,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"worker_process_setup_hook": probe_early},
        **plan["init"],
    )
    result = {"ray": ray.__version__, "nodes": ray.cluster_resources(), "rows": {}}
    for row in plan["rows"]:
        result["rows"][row["name"]] = run_row(row)
    result["driver_initialised"] = torch.xpu.is_initialized()
    result["driver"] = platform()
    ray.shutdown()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
