"""Run as a program where verl's platform is another vendor's: whose functions the markers are, and what they do.

    python other_platform.py OUTPUT nvidia|huawei|late

The vendors are stand-ins on the CPU build: nvidia is verl's own CUDA platform without a card, huawei needs a
`torch.npu` and a `torch_npu`, which are made here. `late` sets the platform only after the markers were imported.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

NAMES = ("mark_start_range", "mark_end_range", "mark_annotate", "marked_timer")


def make_npu() -> list[str]:
    """Put a `torch_npu` with `mstx` in place; returns the list of calls it gets."""
    import torch

    calls: list[str] = []
    mstx = types.ModuleType("torch_npu.npu.mstx")
    mstx.range_start = lambda message=None: calls.append(f"start {message}") or len(calls)
    mstx.range_end = lambda range_id: calls.append(f"end {range_id}")
    mstx.mstx_range = lambda message: lambda function: function
    npu = types.ModuleType("torch_npu.npu")
    npu.mstx, npu.is_available = mstx, lambda: True
    package = types.ModuleType("torch_npu")
    package.npu = torch.npu = npu
    sys.modules |= {"torch_npu": package, "torch_npu.npu": npu, "torch_npu.npu.mstx": mstx}
    return calls


def main() -> None:
    output, vendor = sys.argv[1:]
    calls = make_npu() if vendor == "huawei" else []
    if vendor == "late":
        import verl.utils.profiler as package
        from verl.plugin.platform import set_platform
        from verl.plugin.platform.platform_cuda import PlatformCUDA

        set_platform(PlatformCUDA())
    else:
        import verl.utils.profiler as package
    from xpu_shim.core import ledger

    functions = {name: getattr(package, name) for name in NAMES}
    timing: dict[str, float] = {}
    with functions["marked_timer"]("timer", timing):
        opened = functions["mark_start_range"](message="range")
        functions["mark_end_range"](opened)
        functions["mark_annotate"]("annotated")(lambda: None)()
    report = {
        "ours": sorted(name for name, function in functions.items() if "_xpu_shim_patch" in vars(function)),
        "modules": sorted({function.__module__ for function in functions.values()}),
        "same object": all(getattr(sys.modules[f.__module__], name) is f for name, f in functions.items()),
        "state": str(ledger.record("verl.profiler_markers")),
        "timed": list(timing),
        "calls": calls,
        "range": str(opened),
    }
    Path(output).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
