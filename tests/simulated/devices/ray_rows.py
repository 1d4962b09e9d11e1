"""Run as a program: one Ray session, several rows of actors of verl's `Worker`, and where each actor sat, as JSON.

    python ray_rows.py '{"init": {...}, "rows": [{"name": ..., "actors": 4, "gpus": 1, "env": {...}}, ...]}'

Stdout's last line is `{"nodes": {"GPU": 4.0}, "rows": {name: [seat, ...]}}`; a row that failed is `{"error": text}`.
"""

from __future__ import annotations

import json
import os
import sys
import time

#: Seconds a row may take: starting four workers is most of it.
LIMIT = 180


def probe_early() -> None:
    """What a user's set-up hook, or dpctl, does to a worker: initialise the device before Ray writes a mask."""
    if os.environ.get("PROBE_EARLY") == "1":
        import torch

        torch.xpu.init()


def make_actor():
    import ray
    from verl.single_controller.base.worker import Worker

    @ray.remote(num_cpus=0)
    class Probe(Worker):
        """A training worker that says where it is."""

        def platform(self) -> dict:
            """What verl takes this process for, asked without using the device."""
            import torch
            from verl.utils import device

            return {
                "device": device.get_device_name(),
                "backend": device.get_nccl_backend(),
                "resource": device.get_resource_name(),
                "ipc": device.is_support_ipc(),
                "initialised": torch.xpu.is_initialized(),
            }

        def seat(self) -> dict:
            import torch

            index = torch.xpu.current_device()
            tensor = torch.ones(2, device="xpu")  # where code that names no index computes
            return {
                "uuid": str(torch.xpu.get_device_properties(tensor.device.index).uuid),
                "index": index,
                "count": torch.xpu.device_count(),
                "mask": os.environ.get("ZE_AFFINITY_MASK"),
                "selector": os.environ.get("ONEAPI_DEVICE_SELECTOR"),
                "cuda": os.environ.get("CUDA_VISIBLE_DEVICES"),
                "ids": ray.get_runtime_context().get_accelerator_ids()["GPU"],
                "local_rank": os.environ.get("LOCAL_RANK"),
                "local_world_size": os.environ.get("LOCAL_WORLD_SIZE"),
                "carried": os.environ.get("CCL_LOG_LEVEL"),
            }

    return Probe


def run_row(row: dict) -> list[dict] | dict:
    """Start the row's actors as verl does, ask each for its seat, stop them."""
    import ray

    gpus, each = ray.cluster_resources().get("GPU", 0), row.get("gpus", 1)
    if gpus < row["actors"] * each:
        return {"error": f"Ray found {gpus:g} GPUs"}
    actor_class, actors = make_actor(), []
    for rank in range(row["actors"]):
        env = {
            "WORLD_SIZE": str(row["actors"]),
            "RANK": str(rank),
            "RAY_LOCAL_WORLD_SIZE": str(row["actors"]),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29511",
            **row.get("env", {}),
        }
        actors.append(actor_class.options(num_gpus=each, runtime_env={"env_vars": env}).remote())
    try:
        question = "seat" if each else "platform"
        return ray.get([getattr(actor, question).remote() for actor in actors], timeout=LIMIT)
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

    started = time.time()
    ray.init(
        num_cpus=8,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"worker_process_setup_hook": probe_early},
        **plan.get("init", {}),
    )
    result = {
        "ray": ray.__version__,
        "nodes": ray.cluster_resources(),
        "driver_initialised": torch.xpu.is_initialized(),
        "rows": {},
    }
    for row in plan["rows"]:
        result["rows"][row["name"]] = run_row(row)
    result["driver_initialised"] = result["driver_initialised"] or torch.xpu.is_initialized()
    result["seconds"] = time.time() - started
    ray.shutdown()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
