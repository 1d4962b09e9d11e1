"""Applies patches to a module that was just executed, and takes them back.

The order of the questions is the order in which an answer is cheapest to explain: does the user want it, is it meant
for this kind of process, for this version, is the target there and as expected, is upstream right already.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

from xpu_shim._targets import PATCHES, TARGETS_TO_PATCHES
from xpu_shim.core import drift, ledger, process, settings, versions
from xpu_shim.core.install import Install, resolve
from xpu_shim.core.log import logger
from xpu_shim.core.patch import NotForMe, Patch, Retire

_log = logger("xpu_shim.core")

#: (patch id, module name) pairs some thread is working on.
_busy: dict[tuple[str, str], bool] = {}


class PatchError(RuntimeError):
    """A patch could not be applied; the message has its id, state and reason. Raised in strict mode and on request."""


class UnknownPatchError(LookupError):
    """There is no patch of that id."""


def load(patch_id: str) -> types.ModuleType:
    """The file of a patch, imported.

    Raises:
        UnknownPatchError: if no patch has this id.
    """
    try:
        return importlib.import_module(PATCHES[patch_id])
    except KeyError:
        raise UnknownPatchError(f"no patch has the id {patch_id!r}; `xpu-shim list` shows all") from None


def on_import(name: str, module: types.ModuleType, late: bool = False) -> None:
    """Apply every patch on the target module `name`.

    Args:
        name: the module's name in `sys.modules`.
        module: the module object importers get.
        late: whether it had been imported before the hook was there.

    Raises:
        PatchError: only with `XPU_SHIM_STRICT=1`, if a patch failed or its target drifted.
    """
    for patch_id in TARGETS_TO_PATCHES.get(name, ()):
        _apply_one(patch_id, name, module, late)
        entry = ledger.entry(patch_id, name)
        _log.debug("%s on %s: %s %s", patch_id, name, entry.state, entry.reason)
        if settings.strict() and entry.state in ("failed", "drifted"):
            cause = entry.reason
            raise PatchError(f"XPU_SHIM_STRICT=1: {patch_id} on {name}: {entry.state}: {cause}")


def skip_all(name: str, reason: str) -> None:
    """Record that no patch on `name` is applied, and why."""
    for patch_id in TARGETS_TO_PATCHES.get(name, ()):
        entry = ledger.entry(patch_id, name)
        entry.state, entry.reason = "skipped", reason


def _apply_one(patch_id: str, name: str, module: types.ModuleType, late: bool, forced: bool = False) -> None:
    """Apply one patch on one module and record the outcome; raises nothing."""
    if _busy.setdefault((patch_id, name), False):
        return
    _busy[patch_id, name] = True
    entry = ledger.entry(patch_id, name)
    try:
        if entry.install is not None:
            if entry.install.intact(module):
                return
            entry.install.abandon()  # the module was executed again
            entry.install = None
        entry.state, entry.reason = _decide(patch_id, name, module, late, forced, entry)
    except Exception as error:
        entry.state, entry.reason = "failed", f"{type(error).__name__}: {error}"
        _log.debug("%s on %s failed", patch_id, name, exc_info=True)
    finally:
        _busy.pop((patch_id, name), None)


def _decide(
    patch_id: str, name: str, module: types.ModuleType, late: bool, forced: bool, entry: ledger.Entry
) -> tuple[str, str]:
    """The state and reason of one patch on one module; applies it if nothing speaks against."""
    file = load(patch_id)
    patch: Patch = file.PATCH
    if not forced:
        off = settings.off_reason(patch_id, PATCHES)
        if off:
            return "skipped", off
        if process.kind() not in patch.processes:
            return "skipped", f"not for a {process.kind()} process"
    problem = unsupported_version(patch, name)
    if problem:
        return "skipped", problem
    problem = drifted(patch, module)
    if problem:
        return "drifted", problem
    probe = getattr(file, "probe", None)
    reason = probe(module) if probe else None
    if reason:
        return "retired", reason
    install = Install(patch, module, late)
    try:
        file.apply(install)
    except Retire as answer:
        install.abandon()
        return "retired", str(answer)
    except NotForMe as answer:
        install.abandon()
        return "skipped", str(answer)
    except BaseException:
        install.abandon()
        raise
    if install.empty:
        return "skipped", "nothing to change in this release"
    entry.install = install
    if install.kept:
        return "late", "the old object is still held by " + ", ".join(install.kept[:3])
    return "applied", ""


def unsupported_version(patch: Patch, module: str) -> str | None:
    """Which imported package is outside the patch's ranges, as text; None if all are inside."""
    root = module.partition(".")[0]
    for package, bounds in patch.versions.items():
        if package != root and package not in sys.modules:
            continue
        version = versions.of_imported(package)
        if not versions.within(version, bounds):
            return f"version {package} {version} is not in [{bounds[0]}, {bounds[1]})"
    return None


def drifted(patch: Patch, module: types.ModuleType) -> str | None:
    """Which target in this module is missing or not as it was read, as text; None if all are as expected."""
    lock = drift.load_lock()
    for target in patch.targets_in(module.__name__):
        try:
            value = resolve(module, target.qualname)[2]
        except AttributeError:
            if target.optional:
                continue
            return f"{target} is missing"
        problem = drift.check(target, value, lock, patch.replaces_body)
        if problem:
            return problem
    return None


def apply_patch(patch_id: str) -> None:
    """Import a patch's targets and apply it now, whatever the machine and the settings are; for tests and tools.

    A target module that this environment lacks counts as absent if all its targets are optional.

    Raises:
        UnknownPatchError: if no patch has this id.
        PatchError: if it ends in any other state than applied, late or retired.
    """
    patch: Patch = load(patch_id).PATCH
    for name in patch.modules:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            if all(target.optional for target in patch.targets_in(name)):
                continue
            raise
        _apply_one(patch_id, name, module, late=True, forced=True)
    record = ledger.record(patch_id)
    if record.state not in ("applied", "late", "retired"):
        raise PatchError(f"{patch_id}: {record}")


def remove_patch(patch_id: str) -> None:
    """Take a patch back: its targets are then the identical objects they were before.

    Raises:
        UnknownPatchError: if no patch has this id.
        RemovalError: if something else was put on top of it.
    """
    load(patch_id)
    for entry in ledger.record(patch_id).modules.values():
        install: Any = entry.install
        if install is not None:
            install.remove()
            entry.install, entry.state, entry.reason = None, "armed", ""
