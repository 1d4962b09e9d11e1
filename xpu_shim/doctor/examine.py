"""Runs checks on a machine, several at a time, and says how bad it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from xpu_shim.doctor.check import ERROR, GROUPS, ORDER, UNKNOWN, WARNING, Check, Result, examine
from xpu_shim.doctor.checks import all_checks
from xpu_shim.doctor.machine import Machine

#: Exit status by the worst state: 2 stays what it is everywhere, a wrong command line.
STATUS = {WARNING: 1, UNKNOWN: 1, ERROR: 3}


class UnknownGroupError(ValueError):
    """A group that does not exist was asked for; the message names those that do."""


def select(groups: Sequence[str]) -> tuple[Check, ...]:
    """The checks of some groups, or all for none.

    Raises:
        UnknownGroupError: for a name that is no group.
    """
    for group in groups:
        if group not in GROUPS:
            raise UnknownGroupError(f"no group is called {group!r}; there are {', '.join(GROUPS)}")
    return tuple(item for item in all_checks() if not groups or item.group in groups)


def run(machine: Machine, checks: Iterable[Check]) -> list[Result]:
    """Examine a machine; the results are in the order of the checks."""
    # Threads, because what takes long are child processes: an interpreter with the hook, one that imports torch.
    with ThreadPoolExecutor(max_workers=4) as pool:
        return list(pool.map(lambda item: examine(item, machine), checks))


def status(states: Iterable[str]) -> int:
    """Exit status: 0 fine, 1 a warning or something that could not be looked at, 3 an error."""
    worst = max(states, key=ORDER.index, default=ORDER[0])
    return STATUS.get(worst, 0)


def counts(states: Iterable[str]) -> dict[str, int]:
    """How many are in each state, gravest first; states that do not occur are left out."""
    listed = list(states)
    return {state: listed.count(state) for state in reversed(ORDER) if state in listed}


def as_dict(results: Sequence[Result]) -> dict[str, Any]:
    """Plain data for `--json`."""
    states = [result.finding.state for result in results]
    return {"status": status(states), "counts": counts(states), "checks": [result.as_dict() for result in results]}
