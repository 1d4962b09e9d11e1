"""Whether the run of a driver is profiled, from the configuration its trainer hands to verl's `Tracking`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xpu_shim.profiling import switch


def profiled_steps(config: Any) -> list[int]:
    """`global_profiler.steps` of a trainer's configuration; empty if it has none (no profiling, or an SFT run)."""
    section = config.get("global_profiler") if isinstance(config, Mapping) else None
    steps = section.get("steps") if isinstance(section, Mapping) else None
    return list(steps) if steps else []


def observe(config: Any) -> None:
    """Turn this process's markers on if the run is profiled."""
    if profiled_steps(config):
        switch.begin("driver")
