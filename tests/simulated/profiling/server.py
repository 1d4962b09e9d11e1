"""Run as a program: verl's own vLLM server class with several profilers, as JSON. No engine is started.

    python server.py OUTPUT

The server is made by its own constructor from verl's rollout configuration. Its engine is a recorder that does with a
`collective_rpc` what vLLM's workers do: it calls the method of verl's own worker extension.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


class Engine:
    """Records what the server asks; `workers` engine workers run what is sent to all of them."""

    def __init__(self, workers: int) -> None:
        from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

        self.asked: list[str] = []
        self.workers = [object.__new__(vLLMColocateWorkerExtension) for _ in range(workers)]

    async def start_profile(self, **kwargs):
        self.asked.append("start_profile")

    async def stop_profile(self):
        self.asked.append("stop_profile")

    async def collective_rpc(self, method, timeout=None, args=(), kwargs=None):
        self.asked.append(f"{method}{args}")
        return [getattr(worker, method)(*args) for worker in self.workers]


class Broken(Engine):
    """Its workers lack the method."""

    async def collective_rpc(self, method, timeout=None, args=(), kwargs=None):
        raise NotImplementedError(method)


def row(tool: str, entry, engine: str = "whole", **profiler) -> dict[str, object]:
    """One server: its profiler, before and after a profiled step, and what its engine was asked."""
    import tiny
    from omegaconf import OmegaConf, open_dict
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

    config = tiny.configuration(*tiny.training(Path(os.environ["MODEL"]))).actor_rollout_ref
    with open_dict(config.rollout.profiler):
        config.rollout.profiler.update({"enable": True, "tool": tool, "save_path": os.getcwd(), **profiler})
        if entry is not None:
            config.rollout.profiler.tool_config = OmegaConf.create({tool: entry})
    server = vLLMHttpServer(
        config=config.rollout,
        model_config=config.model,
        rollout_mode="hybrid",
        workers=[],
        replica_rank=0,
        node_rank=0,
        gpus_per_node=1,
        nnodes=1,
        cuda_visible_devices="0",
    )
    server.engine = Broken(1) if engine == "broken" else Engine(1)
    before = type(server.profiler_controller._impl).__name__

    async def step():
        await server.start_profile()
        await server.stop_profile()

    asyncio.run(step())
    return {
        "before": before,
        "profiler": type(server.profiler_controller._impl).__name__,
        "asked": server.engine.asked,
    }


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def main() -> None:
    import foreign_tool
    import tiny

    model = Path("model")
    model.mkdir()
    tiny.write_model(model)
    os.environ["MODEL"] = str(model.absolute())
    import verl  # noqa: F401 - the shim's hook waits for it

    kept = Lines()
    logging.getLogger("xpu_shim").addHandler(kept)
    torch_target = {"_target_": "verl.utils.profiler.config.TorchProfilerToolConfig", "discrete": True}
    table = {
        "torch": ("torch", torch_target, {}),
        "vtune": ("vtune", None, {}),
        "vtune of another replica": ("vtune", None, {"ranks": [5]}),
        "vtune, not enabled": ("vtune", None, {"enable": False}),
        "custom": ("custom", {"_target_": "foreign_tool.WithProfiler"}, {}),
        "unknown": ("unknown", None, {}),
        "vtune, broken engine": ("vtune", None, {"engine": "broken"}),
    }
    import ray

    # The server asks Ray for its node's address and its job, and would start a whole node without limits.
    ray.init(num_cpus=1, num_gpus=0, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False)
    prefix, report = os.environ["ITT_LOG"], {}
    for name, (tool, entry, more) in table.items():
        os.environ["ITT_LOG"] = f"{prefix}.{name}"
        try:
            report[name] = row(tool, entry, **more)
        except Exception as error:
            report[name] = f"{type(error).__name__}: {error}"
    report["foreign calls"] = foreign_tool.calls
    report["warnings"] = [line for line in kept.lines if "profiler.tool" in line]
    Path(sys.argv[1]).write_text(json.dumps(report))
    ray.shutdown()


if __name__ == "__main__":
    main()
