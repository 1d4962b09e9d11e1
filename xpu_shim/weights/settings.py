"""The `XPU_SHIM_WEIGHT_SYNC_…` variables, read at the start of every sync."""

from __future__ import annotations

import os
from dataclasses import dataclass

from xpu_shim.weights.errors import WeightSyncSettingError

MIB = 1 << 20

#: Where the shared memory comes from: `auto` tries `memfd`, then `shm` (/dev/shm), then goes through the `socket`.
BACKENDS = ("auto", "memfd", "shm", "socket")

#: Host buffers the device can reach without a detour: `auto` where the device has them.
PINNED = ("auto", "0", "1")


@dataclass(frozen=True)
class Settings:
    """What the user may choose about a weight sync."""

    #: Seconds without progress of the other end after which a wait ends.
    timeout: float = 300.0
    #: Most shared memory of one rank, in bytes. verl's bucket size lowers it further.
    segment_bytes: int = 16 * MIB
    #: One of `BACKENDS`.
    backend: str = "auto"
    #: One of `PINNED`.
    pinned: str = "auto"
    #: Whether every tensor is compared at both ends and with the served model; see `verify`.
    verify: bool = False


def read() -> Settings:
    """The settings in the environment.

    Raises:
        WeightSyncSettingError: if a value is not allowed.
    """
    return Settings(
        timeout=_number("XPU_SHIM_WEIGHT_SYNC_TIMEOUT", 300.0, 0.1, 86400.0, "seconds"),
        segment_bytes=int(_number("XPU_SHIM_WEIGHT_SYNC_SHM_MB", 16.0, 1.0, 4096.0, "MiB") * MIB),
        backend=_choice("XPU_SHIM_WEIGHT_SYNC_BACKEND", BACKENDS),
        pinned=_choice("XPU_SHIM_WEIGHT_SYNC_PINNED", PINNED),
        verify=_choice("XPU_SHIM_WEIGHT_SYNC_VERIFY", ("0", "1")) == "1",
    )


def _number(variable: str, default: float, low: float, high: float, unit: str) -> float:
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:  # also catches nan
        raise WeightSyncSettingError(
            f"{variable}={text!r}: a number of {unit} from {low:g} to {high:g} is allowed (default {default:g}). "
            "Correct or unset it."
        )
    return value


def _choice(variable: str, allowed: tuple[str, ...]) -> str:
    text = os.environ.get(variable, "").strip().lower() or allowed[0]
    if text not in allowed:
        raise WeightSyncSettingError(
            f"{variable}={text!r}: allowed are {', '.join(allowed)} (default {allowed[0]}). Correct or unset it."
        )
    return text
