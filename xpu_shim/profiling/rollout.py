"""Profiling of a rollout: a vLLM server process and the engine processes behind it."""

from __future__ import annotations

from typing import Any

from xpu_shim.core.log import warn_once
from xpu_shim.profiling import tools

#: Tools for which verl configures vLLM's own profiler.
ENGINE_TOOLS = ("torch", "npu")

#: The method that verl's worker extension of vLLM gets.
ENGINE_METHOD = "xpu_shim_profile"

#: Seconds the engine processes have to start or stop.
ENGINE_LIMIT = 60.0

#: The range in an engine process, from start to stop.
ENGINE_RANGE = "rollout_generate"


def tool_of(server: Any) -> str | None:
    """The tool of a server that upstream does not serve, or None."""
    tool = getattr(getattr(getattr(server, "config", None), "profiler", None), "tool", None)
    return None if tools.is_stock(tool) else tool


def controller(server: Any, module: Any) -> Any:
    """The `DistProfiler` of a server whose tool upstream dropped when it constructed its own; made at the first use.

    Args:
        server: verl's vLLM server.
        module: verl's module of the server; releases that map ranks to replicas have a function for it there.
    """
    config = server.config.profiler
    if server.profiler_controller.config.tool != config.tool:
        build = getattr(module, "build_rollout_dist_profiler", None)
        if build is not None:
            server.profiler_controller = build(server.replica_rank, server.replica_world_size, config=config)
        else:
            server.profiler_controller = module.DistProfiler(server.replica_rank, config=config)
    return server.profiler_controller


async def start(server: Any, module: Any, **kwargs: Any) -> None:
    """Start the server's profiler, and VTune's collection in its engine processes."""
    controller(server, module).start(**kwargs)
    await _tell_engines(server, True)


async def stop(server: Any, module: Any) -> None:
    """Stop both."""
    profiler = controller(server, module)
    await _tell_engines(server, False)
    profiler.stop()


async def _tell_engines(server: Any, begin: bool) -> None:
    profiler = server.profiler_controller
    chosen = profiler.check_enable() and profiler.check_this_rank()
    engine = getattr(server, "engine", None)
    if not chosen or tool_of(server) != tools.VTUNE or engine is None or getattr(server, "node_rank", 0) != 0:
        return
    try:
        await engine.collective_rpc(ENGINE_METHOD, timeout=ENGINE_LIMIT, args=(begin,))
    except Exception as error:
        # The server's own ranges and collection go on; a run is not lost over a profile.
        warn_once(
            f"profiler.tool=vtune: the rollout's engine processes could not be told to {'start' if begin else 'stop'}: "
            f"{type(error).__name__}: {error}"
        )


def profile_engine(worker: Any, begin: bool) -> None:
    """In an engine process: resume VTune's collection and begin a range, or end both."""
    from xpu_shim.profiling import collection, switch

    opened = worker.__dict__.pop("_xpu_shim_range", None)
    if begin and opened is None:
        switch.begin("rollout")
        collection.resume()
        worker._xpu_shim_range = switch.start_range(ENGINE_RANGE)
    elif opened is not None:
        if begin:
            worker._xpu_shim_range = opened  # a second start without a stop
            return
        switch.end_range(opened)
        collection.pause()
        switch.end("rollout")
