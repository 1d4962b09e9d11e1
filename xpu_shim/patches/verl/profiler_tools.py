"""`profiler.tool=vtune`, and tools from elsewhere, get their profiler and their configuration."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.profiler_tools",
    targets=(
        "verl.utils.profiler.profile:DistProfiler.__init__",
        "verl.utils.profiler.profile:DistProfiler.start",
        "verl.utils.profiler.config:ProfilerConfig.__post_init__",
    ),
    why=(
        "`profiler.tool=vtune`, and any tool verl does not know, is taken without a word and profiles nothing: "
        "DistProfiler falls back to a profiler that does nothing, and ActorRolloutRefWorker drops the tool's "
        "configuration, so that a package which adds a tool gets the configuration of all tools instead of its own."
    ),
    how=(
        "DistProfiler gets the tool's own entry of `tool_config` (made by its `_target_` if it has one) and, for vtune "
        "or a configuration with `profiler_cls`, that profiler. An unknown tool is warned about once."
    ),
    upstream=("https://github.com/verl-project/verl/pull/7917",),
    remove_when="verl has a registry of profilers and passes every tool its own configuration.",
    versions={"verl": ("0.7.1", "0.10")},
    required=False,
)


def apply(install: Install) -> None:
    if install.module.__name__ == "verl.utils.profiler.config":
        install.replace("ProfilerConfig.__post_init__", no_configuration)
    else:
        install.replace("DistProfiler.__init__", dispatch)
        install.replace("DistProfiler.start", warn_if_nothing)


def no_configuration(original):
    """A `tool_config` that was never given is empty: TrainingWorker calls its `get`."""

    def __post_init__(self):
        from xpu_shim.profiling import tools

        if not tools.is_stock(self.tool) and self.tool_config in (None, tools.MISSING):
            object.__setattr__(self, "tool_config", {})  # verl's configurations refuse plain assignment
        original(self)

    return __post_init__


def dispatch(original):
    def __init__(self, rank, config=None, tool_config=None, *args, **kwargs):
        from xpu_shim.profiling import tools

        tool = getattr(config, "tool", None)
        if tools.is_stock(tool):
            original(self, rank, config, tool_config, *args, **kwargs)
            return
        chosen = tools.configuration(tool, config, tool_config)  # type: ignore[arg-type]
        # A tool without an entry gets what upstream gives it: None becomes the configuration of all tools there.
        original(self, rank, config, chosen, *args, **kwargs)
        if type(self._impl).__name__ != "_NoOpProfiler":
            return
        impl = tools.profiler(tool, rank, config, chosen, getattr(self, "save_file_prefix", None))  # type: ignore[arg-type]
        if impl is not None:
            self._impl = impl
        elif chosen is None and config.enable:
            tools.warn_unknown(tool)  # type: ignore[arg-type]

    return __init__


def warn_if_nothing(original):
    """A tool whose configuration somebody gave may get its profiler after the constructor; not after the start."""

    def start(self, **kwargs):
        from xpu_shim.profiling import tools

        if type(self._impl).__name__ == "_NoOpProfiler" and self.check_enable() and not tools.is_stock(self._tool):
            tools.warn_unknown(self._tool)
        return original(self, **kwargs)

    return start
