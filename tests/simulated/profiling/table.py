"""Run as a program: what verl makes of each `profiler.tool` and each form of its configuration, as JSON.

    python table.py OUTPUT

A row is a tool, a form (missing, empty, target) and a place: `outer` is the constructor of verl's
ActorRolloutRefWorker, `inner` that of its TrainingWorker. A cell is "Profiler(Configuration)", or the error. "markers"
has where the marker functions come from, and the ITT log has what they sent.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

STOCK_TARGETS = {
    "nsys": "NsightToolConfig",
    "npu": "NPUToolConfig",
    "torch": "TorchProfilerToolConfig",
    "torch_memory": "TorchMemoryToolConfig",
    "precision_debugger": "PrecisionDebuggerToolConfig",
}
TARGETS = {tool: f"verl.utils.profiler.config.{name}" for tool, name in STOCK_TARGETS.items()} | {
    "vtune": "xpu_shim.profiling.config.VTuneToolConfig",
    "custom": "foreign_tool.WithProfiler",
    "unknown": "foreign_tool.WithoutProfiler",
}


def cell(make) -> str:
    """The profiler and configuration of the worker that `make` makes, or its error in one line."""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            profiler = make().profiler
        except Exception as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0][:90] if str(error) else ''}"
    config = profiler.tool_config
    return f"{type(profiler._impl).__name__}({type(config).__name__})"


def outer(config):
    from verl.workers.engine_workers import ActorRolloutRefWorker

    return ActorRolloutRefWorker(config.actor_rollout_ref, role="actor")


def inner(config, model_config):
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig

    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    return TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=model_config,
            engine_config=actor.engine,
            optimizer_config=actor.optim,
            checkpoint_config=actor.checkpoint,
            profiler_config=omega_conf_to_dataclass(config.actor_rollout_ref.actor.profiler),
        )
    )


def rows(model: Path) -> dict[str, str]:
    """All rows, with what was logged while they were made."""
    import tiny
    from omegaconf import OmegaConf, open_dict
    from verl.utils.config import omega_conf_to_dataclass

    config = tiny.configuration(*tiny.training(model))
    model_config = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    profiler = config.actor_rollout_ref.actor.profiler
    result = {}
    for tool, target in TARGETS.items():
        for form, entry in {"missing": None, "empty": {}, "target": {"_target_": target}}.items():
            with open_dict(profiler):
                profiler.enable, profiler.tool, profiler.save_path = True, tool, os.getcwd()
                profiler.tool_config = OmegaConf.create({} if entry is None else {tool: entry})
            result[f"{tool} {form} outer"] = cell(lambda: outer(config))
            result[f"{tool} {form} inner"] = cell(lambda: inner(config, model_config))
    return result


def no_tool_config() -> str:
    """A ProfilerConfig made in Python without `tool_config`, as TrainingWorker reads it."""
    from verl.utils.profiler import DistProfiler, ProfilerConfig

    config = ProfilerConfig(tool="vtune", enable=True, save_path=None)
    try:
        found = config.tool_config.get(config.tool, {})
    except AttributeError as error:
        return f"AttributeError: {error}"
    return type(DistProfiler(rank=0, config=config, tool_config=found)._impl).__name__


def foreign_calls() -> list[str]:
    """What the tool from elsewhere is asked by verl's own start, step and stop."""
    import foreign_tool
    from verl.utils.profiler import DistProfiler, ProfilerConfig

    foreign_tool.calls.clear()
    entry = {"custom": {"_target_": "foreign_tool.WithProfiler", "depth": 5}}
    profiler = DistProfiler(
        rank=0, config=ProfilerConfig(tool="custom", enable=True, save_path=None, tool_config=entry), tool_config=None
    )
    profiler.start(role="train", profile_step=1)
    if hasattr(profiler, "step"):
        profiler.step()
    profiler.stop()
    return list(foreign_tool.calls)


def markers() -> dict[str, str]:
    """Where verl's markers come from; each is used once, inside a profiled step."""
    import verl.utils.profiler as package
    from verl.utils.tracking import Tracking

    timing: dict[str, float] = {}
    with package.marked_timer("before any profiling", timing):
        pass
    Tracking("project", "experiment", ["console"], {"global_profiler": {"steps": [1]}})
    with package.marked_timer("timer", timing, color="red"):
        opened = package.mark_start_range("range", color="red", domain="d", category="c")
        package.mark_annotate("annotated")(lambda: None)()
        package.mark_end_range(opened)
    names = ("mark_start_range", "mark_end_range", "mark_annotate", "marked_timer")
    assert set(timing) == {"before any profiling", "timer"}
    return {name: getattr(package, name).__module__.rpartition(".")[2] for name in names}


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def main() -> None:
    import torch
    import verl  # noqa: F401 - the shim's hook waits for it
    from verl.utils.distributed import initialize_global_process_group

    torch.set_num_threads(1)
    kept = Lines()
    logging.getLogger("xpu_shim").addHandler(kept)
    report: dict[str, object] = {"markers": markers(), "no tool_config": no_tool_config(), "foreign": foreign_calls()}
    model = Path("model")
    model.mkdir()
    import tiny

    tiny.write_model(model)
    if not torch.distributed.is_initialized():
        initialize_global_process_group()
    report["rows"] = rows(model.absolute())
    report["warnings"] = [line for line in kept.lines if "profiler.tool" in line]
    Path(sys.argv[1]).write_text(json.dumps(report))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
