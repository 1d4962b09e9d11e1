"""Which profiler a `profiler.tool` names, and its configuration, wherever in verl's it is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xpu_shim.core.log import warn_once
from xpu_shim.profiling.config import ToolConfigError, VTuneToolConfig

#: verl's own tools: all it does for them is left as it is.
STOCK = ("nsys", "npu", "torch", "torch_memory", "precision_debugger")

VTUNE = "vtune"

#: omegaconf's value of a field that was never set.
MISSING = "???"


def is_stock(tool: Any) -> bool:
    """Whether upstream alone deals with this value of `profiler.tool`."""
    return tool is None or tool == MISSING or tool in STOCK


def configuration(tool: str, config: Any, given: Any) -> Any:
    """The configuration object of `tool`.

    Args:
        tool: `profiler.tool`, not one of verl's own.
        config: verl's `ProfilerConfig`; its `tool_config` maps tools to their entries.
        given: what the caller found for the tool: an object, an entry, nothing, or the whole mapping.

    Returns:
        The object made by the entry's `_target_`; else for `vtune` a `VTuneToolConfig`; else the entry as it is, or
        None if there is none.

    Raises:
        ToolConfigError: if the entry cannot be used.
    """
    entry = given if not _absent(given) else _entry(getattr(config, "tool_config", None), tool)
    if isinstance(entry, Mapping) and tool in entry and "_target_" not in entry:
        entry = entry[tool]  # the whole mapping
    if isinstance(entry, Mapping) and "_target_" in entry:
        entry = _instance(tool, entry)
    if tool == VTUNE:
        if _absent(entry):
            return VTuneToolConfig()
        if isinstance(entry, Mapping):
            return VTuneToolConfig.of(entry)
        if not isinstance(getattr(entry, "discrete", None), bool):
            raise ToolConfigError(
                f"profiler.tool_config.vtune is {entry!r}; a mapping with `discrete`, or an object that has it as a "
                "bool, is needed"
            )
    return None if _absent(entry) else entry


def profiler(tool: str, rank: int, config: Any, tool_config: Any, prefix: str | None) -> Any:
    """The profiler of a tool that upstream does not know, or None if nobody does.

    A tool from elsewhere names its own: the configuration's `profiler_cls`, a class or "package.module.Class", is
    called with `rank`, `config`, `tool_config` and `save_file_prefix`, as upstream calls its backends.

    Raises:
        ToolConfigError: if `profiler_cls` cannot be imported.
    """
    if tool == VTUNE:
        from xpu_shim.profiling.vtune import VTuneProfiler

        return VTuneProfiler(rank=rank, config=config, tool_config=tool_config, save_file_prefix=prefix)
    factory = getattr(tool_config, "profiler_cls", None)
    if factory is None:
        return None
    if isinstance(factory, str):
        factory = _imported(tool, factory)
    return factory(rank=rank, config=config, tool_config=tool_config, save_file_prefix=prefix)


def warn_unknown(tool: str) -> None:
    """Say once that nothing profiles, with the names that would have."""
    warn_once(
        f"profiler.tool={tool!r} is not known, nothing is profiled. Known are {', '.join((*STOCK, VTUNE))}, and any "
        f"tool whose profiler.tool_config.{tool} has a `_target_` with a `profiler_cls`."
    )


def _absent(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value == MISSING) or (isinstance(value, Mapping) and not value)


def _entry(container: Any, tool: str) -> Any:
    return container.get(tool) if isinstance(container, Mapping) else None


def _instance(tool: str, entry: Mapping[str, Any]) -> Any:
    from hydra.utils import instantiate

    try:
        return instantiate(entry, _convert_="partial")
    except ToolConfigError:
        raise
    except Exception as error:
        cause = error.__cause__ if isinstance(error.__cause__, ToolConfigError) else error
        raise ToolConfigError(
            f"profiler.tool_config.{tool} with _target_={entry['_target_']!r} cannot be made: {cause}"
        ) from error


def _imported(tool: str, path: str) -> Any:
    from pkgutil import resolve_name

    module, _, name = path.rpartition(".")
    try:
        return resolve_name(path if ":" in path else f"{module}:{name}")
    except (ImportError, AttributeError, ValueError) as error:
        raise ToolConfigError(
            f"profiler.tool_config.{tool}.profiler_cls={path!r} cannot be imported ({error}); package.module.Class is "
            "needed"
        ) from error
