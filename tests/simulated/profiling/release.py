"""Run as a program on any supported verl release: the tools vtune, torch and torch_memory and the markers, as JSON.

    python release.py OUTPUT

Every entry is what came of it, or the error; the ITT log has the ranges. `FakeWorker` has nothing of verl's but its
`DistProfilerExtension` and the `annotate` decorator, which is all of a worker that profiling touches.
"""

from __future__ import annotations

import gzip
import inspect
import json
import logging
import os
import pickle
import sys
from pathlib import Path


def error_of(function):
    """The result of a function, or its error as text."""
    try:
        return function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def worker_class():
    from verl.utils.profiler import DistProfiler, DistProfilerExtension

    class FakeWorker(DistProfilerExtension):
        """Two stages, as verl's workers annotate them."""

        @DistProfiler.annotate(color="blue", role="actor_compute_log_prob")
        def compute_log_prob(self):
            return self.inner()

        @DistProfiler.annotate(message="inner stage")
        def inner(self):
            import torch

            tensor = torch.ones(64, 64, device="xpu")
            return float((tensor @ tensor).sum())

        @DistProfiler.annotate(color="red", role="actor_update")
        def update(self):
            raise ArithmeticError("a stage that fails")

    return FakeWorker


def profiled(tool: str, entry: object = None, enable: bool = True, rank: int = 0, ranks: tuple[int, ...] = ()):
    """A profiled step of a worker whose second stage fails; returns the class of its profiler."""
    from verl.utils.profiler import DistProfiler, ProfilerConfig

    config = ProfilerConfig(
        tool=tool,
        enable=enable,
        ranks=list(ranks),
        save_path=str(Path.cwd() / f"{tool}-traces"),
        tool_config={} if entry is None else {tool: entry},
    )
    worker = worker_class()(DistProfiler(rank=rank, config=config, tool_config=None if entry is None else entry))
    worker.compute_log_prob()  # before the start: not profiled
    worker.start_profile(role="e2e", profile_step=1)
    worker.compute_log_prob()
    try:
        worker.update()
        raise AssertionError("the stage did not fail")
    except ArithmeticError:
        pass
    worker.stop_profile()
    worker.compute_log_prob()
    return type(worker.profiler._impl).__name__


def in_log(name: str, function):
    """Run a function with an ITT log of its own."""
    prefix = os.environ["ITT_LOG"]
    os.environ["ITT_LOG"] = f"{prefix}.{name}"
    try:
        return error_of(function)
    finally:
        os.environ["ITT_LOG"] = prefix


def torch_contents() -> dict[str, object]:
    """For each `contents`: the activities that torch is asked to record, by verl's own `get_torch_profiler`."""
    from verl.utils.profiler.config import TorchProfilerToolConfig
    from verl.utils.profiler.torch_profile import get_torch_profiler

    def activities(contents):
        checked = TorchProfilerToolConfig(contents=contents).contents
        profiler = get_torch_profiler(contents=checked, save_path=str(Path.cwd() / "traces"))
        return [sorted(activity.name for activity in profiler.activities), profiler.use_device]

    return {
        ",".join(contents): error_of(lambda contents=contents: activities(contents))
        for contents in ([], ["cpu"], ["cuda"], ["xpu"], ["xpu", "cpu", "stack"], ["cuda", "xpu"])
    }


def torch_trace() -> list[str]:
    """Names of the kernels' operators in the trace that verl writes of a step."""
    from verl.utils.profiler.config import TorchProfilerToolConfig

    profiled("torch", TorchProfilerToolConfig(contents=["xpu", "cpu"] if shim_is_on() else []))
    names = set()
    for path in Path("torch-traces").rglob("*.json.gz"):
        with gzip.open(path, "rt") as file:
            names |= {event.get("name") for event in json.load(file)["traceEvents"]}
    return sorted(name for name in names & {"aten::mm", "compute_log_prob", "actor_compute_log_prob"} if name)


def memory_snapshot() -> dict[str, object]:
    """What verl asks `torch.xpu.memory` to record, and the keys of the snapshot it writes after a step."""
    import torch
    from verl.utils.profiler.config import TorchMemoryToolConfig

    asked, record = [], torch.xpu.memory._record_memory_history

    def watched(*args, **kwargs):
        asked.append(kwargs.get("max_entries", "off" if "enabled" in kwargs else None))
        return record(*args, **kwargs)

    watched.__signature__ = inspect.signature(record)  # verl passes what the signature has
    torch.xpu.memory._record_memory_history = watched
    try:
        profiled("torch_memory", TorchMemoryToolConfig(trace_alloc_max_entries=1000, stack_depth=4))
    finally:
        torch.xpu.memory._record_memory_history = record
    snapshots = []
    for path in Path("torch_memory-traces").rglob("*.pickle"):
        with path.open("rb") as file:
            snapshots.append(sorted({"segments", "device_traces"} & set(pickle.load(file))))
    return {"asked": asked, "snapshots": snapshots}


def shim_is_on() -> bool:
    return not os.environ.get("XPU_SHIM_DISABLE")


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def main() -> None:
    import torch
    import verl

    kept = Lines()
    logging.getLogger("xpu_shim").addHandler(kept)
    torch.xpu.set_device(0)
    report = {
        "version": verl.__version__,
        "vtune": in_log("vtune", lambda: profiled("vtune")),
        "discrete": in_log("discrete", lambda: profiled("vtune", {"discrete": True})),
        "other rank": in_log("other", lambda: profiled("vtune", rank=0, ranks=(1,))),
        "chosen rank": in_log("chosen", lambda: profiled("vtune", rank=1, ranks=(1,))),
        "not enabled": in_log("off", lambda: profiled("vtune", enable=False)),
        "bad value": error_of(lambda: profiled("vtune", {"discrete": "yes"})),
        "bad key": error_of(lambda: profiled("vtune", {"discret": True})),
        "bad target": error_of(lambda: profiled("vtune", {"_target_": "no.such.Class"})),
        "contents": torch_contents(),
        "trace": error_of(torch_trace),
        "snapshot": error_of(memory_snapshot),
        "unknown": [error_of(lambda: profiled("vtun")), error_of(lambda: profiled("vtun"))],
    }
    report["warnings"] = [line for line in kept.lines if "profiler.tool" in line]
    Path(sys.argv[1]).write_text(json.dumps(report, default=str))


if __name__ == "__main__":
    main()
