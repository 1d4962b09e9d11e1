"""A card that really is too full for vLLM: who holds it, and which setting fits."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xpu_shim.rollout.holders import Holder

SETTING = "actor_rollout_ref.rollout.gpu_memory_utilization"


def fitting_utilization(free: int, total: int, elsewhere: int = 0) -> float:
    """The largest `gpu_memory_utilization` in hundredths that asks for no more than `free`; 0.0 if none does.

    Args:
        free: bytes.
        total: bytes.
        elsewhere: bytes of weights that another process holds for vLLM; they count as used already.
    """
    hundredths = min(100, (free + elsewhere) * 100 // total)
    while hundredths > 0 and math.ceil(total * (hundredths / 100)) - elsewhere > free:
        hundredths -= 1
    return hundredths / 100


def message(
    device: str,
    free: int,
    total: int,
    utilization: float,
    elsewhere: int,
    own: int,
    everybody: tuple[Holder, ...] | None,
) -> str:
    """The error for a true shortage. Sizes in bytes; it begins as vLLM's does.

    Args:
        device: such as "xpu:0".
        free: free memory.
        total: size of the device.
        utilization: what was asked for.
        elsewhere: weights another process holds for vLLM.
        own: what this process holds.
        everybody: the processes on the card, or None if the kernel does not tell.
    """
    wanted = math.ceil(total * utilization) - elsewhere
    others = max(0, total - free - own)
    names = ""
    if everybody is not None:
        rows = [
            f"pid {holder.pid} ({holder.name}) {_gib(holder.held)}" for holder in everybody if holder.pid != os.getpid()
        ]
        names = f": {', '.join(rows[:5])}" if rows else ""
    fits = fitting_utilization(free, total, elsewhere)
    advice = (
        f"Lower {SETTING} from {utilization:g} to {fits:g}"
        if fits > 0
        else f"No {SETTING} fits: less than a hundredth of the device is free"
    )
    return (
        f"Free memory on device {device} ({_gib(free)} of {_gib(total)}) on startup is less than desired GPU memory "
        f"utilization ({utilization:g}, {_gib(wanted)}): {_gib(wanted - free)} are missing. This process holds "
        f"{_gib(own)}, others hold {_gib(others)}{names}. {advice}, or make the others hold less (for the trainer: "
        "actor_rollout_ref.actor.fsdp_config.param_offload=True and optimizer_offload=True)."
    )


def second_look(original: Any, snapshot: Any, cache_config: Any, *args: Any, **kwargs: Any) -> int:
    """vLLM's `request_memory`; where it refuses, look again, then refuse with a message that helps.

    Another process may have released memory since the snapshot; then the snapshot is brought up to date.

    Returns:
        The bytes vLLM may use.

    Raises:
        ValueError: if memory really is short.
    """
    try:
        return original(snapshot, cache_config, *args, **kwargs)
    except ValueError as error:
        elsewhere = int(kwargs.get("external_weight_memory", args[0] if args else 0) or 0)
        utilization = cache_config.gpu_memory_utilization
        wanted = math.ceil(snapshot.total_memory * utilization) - elsewhere
        if snapshot.device_.type != "xpu" or wanted <= 0:
            raise
        from xpu_shim.rollout import device, snapshots

        index = snapshots.index_of(snapshot.device_)
        reading = device.memory(index)
        if reading.free >= wanted:
            snapshots.put(snapshot, reading.free, reading.total)
            return original(snapshot, cache_config, *args, **kwargs)
        own = device.own_share(index)
        raise ValueError(
            message(
                str(snapshot.device_),
                reading.free,
                reading.total,
                utilization,
                elsewhere,
                snapshot.torch_memory if own is None else own,
                device.card_holders(index),
            )
        ) from error


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB"
