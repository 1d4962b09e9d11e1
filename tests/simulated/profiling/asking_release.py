"""Run as a program with the hook off: the patch on a verl that asks its platform for markers. Writes JSON.

No such release exists yet: the method its change adds to `PlatformBase` is added here, answering None as it does there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    import verl.utils.profiler as package
    from verl.plugin.platform import platform_base, set_platform
    from verl.plugin.platform.platform_cuda import PlatformCUDA

    from xpu_shim.core import ledger
    from xpu_shim.core.apply import apply_patch, remove_patch
    from xpu_shim.devices.platform import PlatformXPU

    def profiler_markers(self):
        return None

    platform_base.PlatformBase.profiler_markers = profiler_markers
    before = [package.mark_start_range, package.marked_timer]
    apply_patch("verl.profiler_markers")
    set_platform(PlatformXPU())
    start, end, annotate, timer = PlatformXPU().profiler_markers()
    timing: dict[str, float] = {}
    from xpu_shim.profiling import switch

    switch.begin("test")
    with timer("timer", timing):
        opened = start("range")
        annotate("annotated")(lambda: None)()
        end(opened)
    report = {
        "modules": {name: entry.state for name, entry in ledger.record("verl.profiler_markers").modules.items()},
        "stock functions": [package.mark_start_range, package.marked_timer] == before,
        "cuda": PlatformCUDA().profiler_markers(),
        "timed": list(timing),
    }
    remove_patch("verl.profiler_markers")
    report["removed"] = platform_base.PlatformBase.profiler_markers is profiler_markers
    Path(sys.argv[1]).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
