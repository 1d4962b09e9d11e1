"""The user's settings on devices: `XPU_SHIM_VISIBILITY` and `XPU_SHIM_ALLOW_SHARED_DEVICE`."""

from __future__ import annotations

import os

PIN, MASK_ONE = "pin", "mask"


class SettingError(ValueError):
    """A setting has a value that is not allowed; names the variable, the value and what is allowed."""


def visibility() -> str:
    """How a worker of verl under Ray gets its device: "pin" (sees all allowed, selects its own) or "mask" (sees one).

    Ranks of torchrun always see all allowed devices: programs select by LOCAL_RANK there.

    Raises:
        SettingError: for any other value of ``XPU_SHIM_VISIBILITY``.
    """
    value = os.environ.get("XPU_SHIM_VISIBILITY") or PIN
    if value not in (PIN, MASK_ONE):
        raise SettingError(
            f"XPU_SHIM_VISIBILITY={value!r} is not known. Allowed: pin (default: every rank sees all allowed devices "
            "and selects its own) and mask (every Ray worker sees one device; oneCCL cannot use peer access then)."
        )
    return value


def shared_device_allowed() -> bool:
    """Whether several ranks may sit on one device (``XPU_SHIM_ALLOW_SHARED_DEVICE=1``).

    Raises:
        SettingError: for a value other than 0 and 1.
    """
    value = os.environ.get("XPU_SHIM_ALLOW_SHARED_DEVICE") or "0"
    if value not in ("0", "1"):
        raise SettingError(f"XPU_SHIM_ALLOW_SHARED_DEVICE={value!r} is not known. Allowed: 0 and 1.")
    return value == "1"


def wants_intel() -> bool:
    """Whether the user left the choice of platform to the shim: ``VERL_PLATFORM`` unset, or intel."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() in ("", "intel")
