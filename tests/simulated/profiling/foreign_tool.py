"""A profiling tool from elsewhere: its configuration, and its profiler in the shape of verl's backends."""

from __future__ import annotations

from dataclasses import dataclass

#: What the profiler was asked to do in this process, in order.
calls: list[str] = []


class Recorder:
    """Notes every call."""

    def __init__(self, rank, config, tool_config, save_file_prefix=None):
        self.depth = tool_config.depth
        calls.append(f"made for rank {rank}, depth {self.depth}")

    def start(self, **kwargs):
        calls.append("start")

    def stop(self):
        calls.append("stop")

    def step(self):
        calls.append("step")


@dataclass
class WithProfiler:
    """Names its profiler."""

    depth: int = 3
    discrete: bool = False
    profiler_cls: str = "foreign_tool.Recorder"


@dataclass
class WithoutProfiler:
    """Names none: a package of its own would put the profiler into `DistProfiler`."""

    depth: int = 3
