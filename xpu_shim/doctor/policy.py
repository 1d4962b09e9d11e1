"""`xpu-shim env`: the environment policy and what it means here; the table itself is `xpu_shim.intel.environment`."""

from __future__ import annotations

import shlex
from typing import Any

from xpu_shim.doctor.facts import number, torch_build
from xpu_shim.doctor.machine import Machine
from xpu_shim.intel.environment import RECOMMEND, REMOVE, RULES, SET, Change, Facts, Rule, plan
from xpu_shim.intel.visibility import SELECTOR


def facts(machine: Machine) -> Facts:
    """What the rules may look at on this machine.

    Raises:
        xpu_shim.doctor.machine.CouldNotLook: if sysfs or torch's version file cannot be read.
    """
    build = torch_build(machine)
    return Facts(machine.environ, number(build.version if build else None), machine.gpus)


def planned(machine: Machine) -> tuple[Change, ...]:
    """What the policy asks for on this machine.

    Raises:
        xpu_shim.intel.visibility.VisibilityError: if mask, selector or hierarchy is malformed.
        xpu_shim.doctor.machine.CouldNotLook: as `facts`.
    """
    return plan(facts(machine))


def rows(machine: Machine) -> list[dict[str, Any]]:
    """Every rule with its state here: "set", "removed", "recommended", "kept" (the user's value wins) or "-"."""
    known = facts(machine)
    changes = planned(machine)
    found = [_row(rule, known) for rule in RULES]
    # A selector that restricted something becomes a mask: a change without a rule of its own.
    for change in changes:
        if change.rule.name == SELECTOR and change.name != SELECTOR:
            found.append(
                {
                    **_row(change.rule, known),
                    "name": change.name,
                    "action": SET,
                    "value": change.value or "",
                    "here": "set",
                    "now": machine.environ.get(change.name),
                }
            )
    return found


def _row(rule: Rule, known: Facts) -> dict[str, Any]:
    applies = rule.applies(known)
    here = {SET: "set", REMOVE: "removed", RECOMMEND: "recommended"}[rule.action] if applies else "-"
    if applies and rule.action == SET and rule.name in known.environ:
        here = "kept"
    return {
        "name": rule.name,
        "action": rule.action,
        "value": rule.value,
        "now": known.environ.get(rule.name),
        "here": here,
        "when": rule.when,
        "why": rule.why,
        "evidence": list(rule.evidence),
    }


def exports(machine: Machine) -> list[str]:
    """Shell lines that do what the shim does here; recommendations are comments.

    Raises:
        xpu_shim.intel.visibility.VisibilityError: if mask, selector or hierarchy is malformed.
    """
    lines = []
    for change in planned(machine):
        if change.rule.action == RECOMMEND:
            advice = f"export {change.name}={shlex.quote(change.value)}" if change.value else f"change {change.name}"
            lines.append(f"# {advice}   # if: {change.rule.when}")
        elif change.value is None:
            lines.append(f"unset {change.name}")
        else:
            lines.append(f"export {change.name}={shlex.quote(change.value)}")
    return lines
