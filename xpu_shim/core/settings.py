"""`XPU_SHIM_DISABLE`, `XPU_SHIM_ONLY`, `XPU_SHIM_STRICT`: which patches the user wants, and how failures are told."""

from __future__ import annotations

import difflib
import os
from typing import TYPE_CHECKING

from xpu_shim.core.log import warn_once

if TYPE_CHECKING:
    from collections.abc import Collection


def strict() -> bool:
    """Whether a patch that failed or drifted raises instead of being a state."""
    return os.environ.get("XPU_SHIM_STRICT") == "1"


def off_reason(patch_id: str, known: Collection[str]) -> str | None:
    """Why the user's settings switch this patch off, or None if they do not.

    Args:
        patch_id: the patch asked about.
        known: all ids, for the warning about an id that is none of them.
    """
    disabled = _ids("XPU_SHIM_DISABLE", known)
    if patch_id in disabled:
        return "XPU_SHIM_DISABLE"
    only = _ids("XPU_SHIM_ONLY", known)
    if only and patch_id not in only:
        return "XPU_SHIM_ONLY"
    return None


def _ids(variable: str, known: Collection[str]) -> set[str]:
    """The ids named by a comma-separated variable; an unknown one is warned about once and has no effect."""
    named = {part.strip() for part in os.environ.get(variable, "").split(",") if part.strip()}
    for unknown in sorted(named.difference(known)):
        near = difflib.get_close_matches(unknown, known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}" if near else "`xpu-shim list` shows them"
        warn_once(f"{variable} names {unknown!r}, which is no patch id ({hint}?). It is ignored.")
    # With XPU_SHIM_ONLY naming nothing but unknown ids, the user still meant "not everything".
    return named
