"""The user's setting on markers: `XPU_SHIM_MARKERS`."""

from __future__ import annotations

import os

from xpu_shim.core.log import warn_once

AUTO, ALWAYS, NEVER = "auto", "1", "0"


def markers() -> str:
    """When verl's markers send ITT ranges: `auto` (while verl profiles), `1` (always) or `0` (never).

    Any other value of ``XPU_SHIM_MARKERS`` is warned about once and counts as `auto`.
    """
    value = os.environ.get("XPU_SHIM_MARKERS", "").strip().lower() or AUTO
    if value not in (AUTO, ALWAYS, NEVER):
        warn_once(
            f"XPU_SHIM_MARKERS={value!r} is not known. Allowed: auto (default: ranges are sent while verl profiles), "
            "1 (always) and 0 (never). Continuing as with auto."
        )
        return AUTO
    return value
