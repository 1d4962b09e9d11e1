"""verl's markers send ITT ranges on Intel GPUs, whether nvtx is importable or not."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.profiler_markers",
    targets=(
        "verl.utils.profiler.profile:mark_start_range",
        "verl.utils.profiler.profile:mark_end_range",
        "verl.utils.profiler.profile:mark_annotate",
        "verl.utils.profiler.performance:marked_timer",
        "verl.utils.profiler.nvtx_profile:mark_start_range?",
        "verl.utils.profiler.nvtx_profile:mark_end_range?",
        "verl.utils.profiler.nvtx_profile:mark_annotate?",
        "verl.utils.profiler.nvtx_profile:marked_timer?",
        "verl.plugin.platform.platform_base:PlatformBase.profiler_markers?",
    ),
    why=(
        "VTune shows no stage of a step. verl takes nvtx's markers whenever that package is importable (it comes with "
        "verl's own dependencies) and markers that do nothing otherwise; the platform is never asked. nvtx's also "
        "leave the range of a stage that raises open. There is no error."
    ),
    how=(
        "The marker functions send ITT ranges while verl profiles (XPU_SHIM_MARKERS=1: always, 0: never), through "
        "Intel's ittapi if it is installed, else torch.profiler.itt. Releases whose platform has `profiler_markers()` "
        "get them from there instead."
    ),
    upstream=(
        "https://github.com/verl-project/verl/pull/7917",
        "https://github.com/verl-project/verl-hardware-plugin/pull/22",
    ),
    remove_when="every supported verl asks the platform for its markers, and an Intel platform has them.",
    versions={"verl": ("0.7.1", "0.11")},
    required=False,
)

PLATFORM = "verl.plugin.platform.platform_base"


def probe(module) -> str | None:
    """The functions need no change once verl asks the platform; that is then what is changed."""
    import sys

    base = getattr(sys.modules.get(PLATFORM), "PlatformBase", None)
    if module.__name__ != PLATFORM and hasattr(base, "profiler_markers"):
        return "verl asks the platform for its markers"
    return None


def apply(install: Install) -> None:
    from xpu_shim.profiling import markers

    module = install.module
    if module.__name__ == PLATFORM:
        if hasattr(module.PlatformBase, "profiler_markers"):
            install.replace("PlatformBase.profiler_markers", itt_on_xpu)
        return
    reason = other_platform()
    if reason:
        install.skip(reason)
    makers = {
        "mark_start_range": markers.start_range,
        "mark_end_range": markers.end_range,
        "mark_annotate": markers.annotate,
        "marked_timer": markers.timer,
    }
    for target in PATCH.targets_in(module.__name__):
        install.replace(target.qualname, makers[target.qualname])


def other_platform() -> str | None:
    """Why upstream's own markers are right here, as far as can be said without detecting the platform; else None."""
    import sys

    import torch

    from xpu_shim.devices.settings import wants_intel

    if not wants_intel():
        return "VERL_PLATFORM names another platform"
    if not torch.xpu._is_compiled():
        return "torch is built without XPU support"
    manager = sys.modules.get("verl.plugin.platform.platform_manager")
    current = getattr(manager, "_current_platform", None)
    if current is not None and current.device_name != "xpu":
        return f"verl's platform is {current.device_name}"
    return None


def itt_on_xpu(original):
    def profiler_markers(self):
        answer = original(self)
        if answer is not None or self.device_name != "xpu":
            return answer
        from xpu_shim.profiling.platform_markers import FUNCTIONS

        return FUNCTIONS

    return profiler_markers
