"""What the finder calls: decides whether this process has work for an Intel GPU, then hands modules to the engine."""

from __future__ import annotations

import os
import sys
import types
from typing import Any

from xpu_shim import activation
from xpu_shim._targets import PATCHES, TARGETS_TO_PATCHES
from xpu_shim.core import apply, ledger, process

#: Targets that were imported before it was known whether this process is for us: name to "its execution is finished".
_pending: dict[str, bool] = {}


def on_import(name: str, module: types.ModuleType) -> None:
    """Apply the patches on a target module, now or, while it is not known whether torch is an XPU build, later.

    Called after the module was executed, or, for one that was imported before the hook was there, when the hook is
    armed; that one may still be executing in another thread.
    """
    late = not _executed_by_us(module)
    _pending[name] = not (late and _initializing(module))
    decision = activation.decide(torch_is_ready=name == "torch" and not (late and _initializing(module)))
    if decision.active is None:
        return
    if decision.active:
        os.environ["XPU_SHIM_ARMED"] = "1"  # children arm at once, whatever they import first
    for pending, finished in list(_pending.items()):
        target = sys.modules.get(pending)
        if target is None or (not finished and _initializing(target)):
            continue
        if _pending.pop(pending, None) is None:
            continue  # another thread took it
        if decision.active:
            apply.on_import(pending, target, late=late or pending != name)
        else:
            apply.skip_all(pending, decision.reason)
    ledger.write_report({"active": decision.active, "reason": decision.reason})


def _executed_by_us(module: types.ModuleType) -> bool:
    """Whether the hook ran this module's loader, so that nobody can have copied from it before."""
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    return getattr(loader, "_xpu_shim_armed", None) is not None


def _initializing(module: types.ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def describe() -> dict[str, Any]:
    """See `xpu_shim.status`."""
    decision = activation.decide(torch_is_ready="torch" in sys.modules and not _initializing(sys.modules["torch"]))
    patches = {patch_id: {"state": "armed", "reason": "", "modules": {}} for patch_id in sorted(PATCHES)}
    patches.update(ledger.snapshot())
    finder = sys.modules.get("xpu_shim._finder")
    return {
        "pid": os.getpid(),
        "process": process.kind(),
        "active": bool(decision.active),
        "reason": decision.reason,
        "armed": finder is not None,
        "targets": len(TARGETS_TO_PATCHES),
        "errors": [f"{name}: {error!r}" for name, error in getattr(finder, "errors", [])],
        "patches": patches,
    }
