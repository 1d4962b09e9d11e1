"""What happened to each patch in this process.

States: `armed` (its target was not imported yet), `applied`, `retired`, `skipped`, `drifted` (upstream is not what the
patch expects), `late` (a holder kept the old object), `failed`. A state is kept per target module, a patch's own state
is the one that says most. With `XPU_SHIM_REPORT_DIR` set, every change is also written to a file there, so that a
process that is killed has reported all the same.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from typing import Any

from xpu_shim.core import process

#: From least to most telling: a patch with one module applied and one still armed counts as applied.
ORDER = ("armed", "skipped", "retired", "applied", "late", "drifted", "failed")


@dataclass
class Entry:
    """One patch on one module."""

    state: str = "armed"
    reason: str = ""
    #: What was installed there, for removal; see `xpu_shim.core.install`.
    install: Any = None


@dataclass
class Record:
    """One patch in this process."""

    id: str
    modules: dict[str, Entry] = field(default_factory=dict)

    @property
    def state(self) -> str:
        states = [entry.state for entry in self.modules.values()]
        return max(states, key=ORDER.index) if states else "armed"

    @property
    def reason(self) -> str:
        """The reasons behind the state, each once."""
        state = self.state
        reasons = [entry.reason for entry in self.modules.values() if entry.state == state and entry.reason]
        return "; ".join(dict.fromkeys(reasons))

    def __str__(self) -> str:
        return f"{self.state}:{self.reason}" if self.reason else self.state


#: Patch id to what happened to it here.
records: dict[str, Record] = {}

#: What patched code has to say for the report, by key; plain data.
notes: dict[str, Any] = {}

#: The last `extra` of `write_report`.
_extra: dict[str, Any] = {}


def record(patch_id: str) -> Record:
    """The record of a patch, made if need be."""
    return records.setdefault(patch_id, Record(patch_id))


def entry(patch_id: str, module: str) -> Entry:
    """The entry of a patch on one module, made if need be."""
    return record(patch_id).modules.setdefault(module, Entry())


def snapshot() -> dict[str, dict[str, Any]]:
    """All records as plain data: id to state, reason and the state per module."""
    return {
        patch_id: {
            "state": item.state,
            "reason": item.reason,
            "modules": {
                name: {"state": entry.state, "reason": entry.reason} for name, entry in sorted(item.modules.items())
            },
        }
        for patch_id, item in sorted(records.items())
    }


def write_report(extra: dict[str, Any]) -> None:
    """Write this process's report to `XPU_SHIM_REPORT_DIR`, replacing the one before; a full disk is not an error."""
    _extra.update(extra)
    folder = os.environ.get("XPU_SHIM_REPORT_DIR")
    if not folder:
        return
    pid = os.getpid()
    data = {
        "pid": pid,
        "parent": os.getppid(),
        "name": process.name(),
        "process": process.kind(),
        "python": sys.executable,
        "patches": snapshot(),
        "notes": notes,
        **extra,
    }
    path = os.path.join(folder, f"{pid}.json")
    try:
        with open(f"{path}.tmp", "w", encoding="utf-8") as file:
            json.dump(data, file)
        os.replace(f"{path}.tmp", path)
    except OSError as error:
        from xpu_shim.core.log import warn_once

        warn_once(f"XPU_SHIM_REPORT_DIR={folder!r}: the report of process {pid} could not be written ({error}).")


def note(key: str, value: Any) -> None:
    """Put plain data into this process's report, replacing what the key had."""
    notes[key] = value
    write_report(_extra)
