"""torch's profiler on xpu: what verl calls `cuda` is the device, and the device's activity is XPU."""

from __future__ import annotations

from typing import Any

from xpu_shim.core.log import warn_once

#: Contents that ask for the device's activity: verl's word, and ours.
DEVICE_CONTENTS = ("cuda", "xpu")


def contents_for_upstream(contents: Any) -> Any:
    """`contents` in upstream's words: xpu becomes cuda, once; an empty value stays empty, which means all."""
    if not contents:
        return contents
    return list(dict.fromkeys("cuda" if content == "xpu" else content for content in contents))


def record_xpu(profiler: Any) -> Any:
    """Make a `torch.profiler.profile` that was not started record XPU where it was told CUDA; returns it.

    Where this torch cannot record XPU activity the device is left out, with one warning, and the CPU side is recorded.
    """
    from torch.profiler import ProfilerActivity, supported_activities

    if ProfilerActivity.CUDA not in profiler.activities:
        return profiler
    activities = set(profiler.activities) - {ProfilerActivity.CUDA}
    if ProfilerActivity.XPU in supported_activities():
        activities.add(ProfilerActivity.XPU)
        profiler.use_device = "xpu"
    else:
        warn_once(
            "profiler.tool=torch: this torch cannot record XPU activity (built without Kineto's XPU plugin); only the "
            "CPU side is recorded"
        )
        activities.add(ProfilerActivity.CPU)
        profiler.use_device = None
    profiler.activities = activities
    return profiler
