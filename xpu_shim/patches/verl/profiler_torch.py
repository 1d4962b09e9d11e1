"""`profiler.tool=torch` records XPU activity and takes `contents: [xpu]`."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.profiler_torch",
    targets=(
        "verl.utils.profiler.torch_profile:get_torch_profiler",
        "verl.utils.profiler.config:TorchProfilerToolConfig.__post_init__",
    ),
    why=(
        "torch's traces have no kernel of the GPU: verl asks for CUDA activity on every device (`CUDA is not "
        "available, disabling CUDA profiling`). `contents: [xpu]` stops with `AssertionError: Profiler contents only "
        "supports ['cuda', 'cpu', 'memory', 'shapes', 'stack'], but gets xpu`."
    ),
    how="On xpu the device's activity is ProfilerActivity.XPU, and xpu is a content like cuda.",
    upstream=("https://github.com/verl-project/verl/pull/7988",),
    remove_when="verl's torch profiler asks the platform for the device's activity.",
    versions={"verl": ("0.7.1", "0.10")},
    required=False,
)


def probe(module) -> str | None:
    """Upstream is right once xpu is a content it takes."""
    config = getattr(module, "TorchProfilerToolConfig", None)
    if module.__name__.endswith(".config") and config is not None:
        try:
            config(contents=["xpu"])
        except AssertionError:
            return None
        return "verl takes contents: [xpu]"
    return None


def apply(install: Install) -> None:
    if install.module.__name__.endswith(".config"):
        install.replace("TorchProfilerToolConfig.__post_init__", xpu_is_a_content)
    else:
        install.replace("get_torch_profiler", xpu_activity)


def xpu_is_a_content(original):
    def __post_init__(self):
        contents = self.contents
        if not isinstance(contents, (list, tuple)) or "xpu" not in contents:
            original(self)
            return
        # verl's configurations refuse plain assignment.
        object.__setattr__(self, "contents", [content for content in contents if content != "xpu"])
        try:
            original(self)
        finally:
            object.__setattr__(self, "contents", contents)

    return __post_init__


def xpu_activity(original):
    def get_torch_profiler(contents, *args, **kwargs):
        from verl.utils.device import get_device_name

        from xpu_shim.profiling.torch_activities import contents_for_upstream, record_xpu

        if get_device_name() != "xpu":
            return original(contents, *args, **kwargs)
        return record_xpu(original(contents_for_upstream(contents), *args, **kwargs))

    return get_torch_profiler
