"""The configuration of the tool `vtune`: `profiler.tool_config.vtune`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


class ToolConfigError(ValueError):
    """An entry of `profiler.tool_config` cannot be used; names the key, the value seen and what is allowed."""


@dataclass(frozen=True)
class VTuneToolConfig:
    """Also usable from YAML with `_target_: xpu_shim.profiling.config.VTuneToolConfig`.

    Attributes:
        discrete: True collects each annotated stage on its own (resume before, pause after it), False the whole step.
        name: as in verl's other tool configurations; not used.

    Raises:
        ToolConfigError: if `discrete` is not a bool.
    """

    discrete: bool = False
    name: str = "vtune"

    def __post_init__(self) -> None:
        if not isinstance(self.discrete, bool):
            raise ToolConfigError(
                f"profiler.tool_config.vtune.discrete={self.discrete!r} is not allowed; use true (collect each stage "
                "on its own) or false (the whole step)"
            )

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> VTuneToolConfig:
        """From the plain mapping of a configuration without `_target_`.

        Raises:
            ToolConfigError: if it has a key that is not known.
        """
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(entry) - set(known))
        if unknown:
            raise ToolConfigError(
                f"profiler.tool_config.vtune has the key {unknown[0]!r}; known are {', '.join(known)} and _target_"
            )
        return cls(**entry)
