"""The profiler behind `profiler.tool=vtune`, in the shape verl's `DistProfiler` gives its backends."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from xpu_shim.profiling import collection, switch

if TYPE_CHECKING:
    from collections.abc import Callable

    from xpu_shim.profiling.config import VTuneToolConfig


class VTuneProfiler:
    """Resumes VTune's collection for the chosen ranks and steps, and sends a range for each annotated stage.

    verl asks for the rank and the step before it calls any of this. With `discrete` the collection runs only inside the
    annotated stages, else from `start` to `stop`.

    Args:
        rank: this process's rank; for the log.
        config: verl's `ProfilerConfig`; with `enable` the collection is paused until the first start.
        tool_config: `VTuneToolConfig`.
    """

    def __init__(self, rank: int, config: Any, tool_config: VTuneToolConfig, **_: Any) -> None:
        self.rank, self.discrete = rank, tool_config.discrete
        self._started = False
        if getattr(config, "enable", False):
            collection.prepare()

    def start(self, **_: Any) -> None:
        """Begin to profile; a second start without a stop does nothing."""
        if self._started:
            return
        self._started = True
        switch.begin("step")
        if not self.discrete:
            collection.resume()

    def stop(self) -> None:
        """Stop profiling; without a start it does nothing."""
        if not self._started:
            return
        self._started = False
        if not self.discrete:
            collection.pause()
        switch.end("step")

    def step(self) -> None:
        """Does nothing: verl tells mini-batches apart for torch's profiler only."""

    def annotate(self, message: str | None = None, role: str | None = None, **_: Any) -> Callable[[Any], Any]:
        """A decorator that makes each call of a stage a range, named by `message`, the role or the function."""

        def decorator(func):
            name = message or role or func.__name__
            if inspect.iscoroutinefunction(func):

                @functools.wraps(func)
                async def stage(*args, **kwargs):
                    opened = self._enter(name)
                    try:
                        return await func(*args, **kwargs)
                    finally:
                        self._leave(opened)

            else:

                @functools.wraps(func)
                def stage(*args, **kwargs):
                    opened = self._enter(name)
                    try:
                        return func(*args, **kwargs)
                    finally:
                        self._leave(opened)

            return stage

        return decorator

    def _enter(self, name: str):
        if self.discrete:
            collection.resume()
        return switch.start_range(name) if switch.on else None

    def _leave(self, opened) -> None:
        if opened is not None:
            switch.end_range(opened)
        if self.discrete:
            collection.pause()
