"""What vLLM itself took of the card while it started, though others on the card allocate and release meanwhile."""

from __future__ import annotations

from typing import Any

from xpu_shim.core.log import logger
from xpu_shim.rollout import snapshots
from xpu_shim.rollout.memory import SLACK

_log = logger("xpu_shim.rollout")


def own_consumption(result: Any) -> int:
    """Bytes this process took between vLLM's first snapshot and the end of profiling.

    The kernel's own account of this process decides where there is one. Otherwise: what torch's allocator took is
    known, and what was taken outside it shows in the readings, unless somebody released memory in the same step. A
    step in which memory outside the allocator shrank is such a release (a starting engine takes, it does not give
    back), so that step counts as nothing taken. What a release hides within a step is not found: at most what vLLM
    took outside the allocator in that step (its oneCCL and Level Zero buffers).

    Args:
        result: vLLM's `MemoryProfilingResult` after profiling.
    """
    first, second, last = result.before_create, result.before_profile, result.after_profile
    measured = first.free_memory - last.free_memory
    allocated = last.torch_memory - first.torch_memory
    held = [getattr(snapshot, snapshots.HELD, None) for snapshot in (first, last)]
    if None not in held:
        told = held[1] - held[0]  # type: ignore[operator]
        if told >= allocated - SLACK:
            return told
    steps = (second.non_torch_memory - first.non_torch_memory, last.non_torch_memory - second.non_torch_memory)
    if min(steps) >= -SLACK and measured >= 0:
        return measured
    taken = max(allocated, 0) + sum(max(step, 0) for step in steps)
    return max(taken, result.weights_memory)


def correct(result: Any) -> None:
    """Put the own consumption into a profiling result of any release, on which the KV cache's size rests.

    Free memory after profiling becomes what it would be had nobody else moved, so that vLLM's assertion holds.
    """
    first, last = result.before_create, result.after_profile
    if first.device_.type != "xpu":
        return
    measured = first.free_memory - last.free_memory
    consumed = own_consumption(result)
    if consumed == measured:
        return
    if abs(consumed - measured) > SLACK:
        _log.warning(
            "while vLLM was profiling, another process on %s %s %.2f GiB; the KV cache is sized by what vLLM itself "
            "took, %.2f GiB",
            first.device_,
            "released" if consumed > measured else "allocated",
            abs(consumed - measured) / (1 << 30),
            consumed / (1 << 30),
        )
    snapshots.put(last, first.free_memory - consumed, last.total_memory)
    result.non_torch_increase = last.non_torch_memory - first.non_torch_memory
    if hasattr(result, "total_consumed"):  # 0.27 and newer
        result.total_consumed = consumed
        result.non_kv_cache_memory = consumed + result.transient_peak_headroom
    else:
        result.non_kv_cache_memory = result.non_torch_increase + result.torch_peak_increase + result.weights_memory
