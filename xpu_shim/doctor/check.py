"""A check: what it looks at, why that matters, and the function that looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from xpu_shim.doctor.machine import CouldNotLook, Machine

OK, WARNING, ERROR, SKIPPED, UNKNOWN = "ok", "warning", "error", "not applicable", "could not look"

#: From harmless to grave; "could not look" stands with warnings, because nothing is known.
ORDER = (SKIPPED, OK, UNKNOWN, WARNING, ERROR)

#: Group, the first part of a check's id, to its title; in the order of the report.
GROUPS = {
    "hardware": "hardware and permissions",
    "driver": "driver and libraries",
    "torch": "torch and oneCCL",
    "python": "Python start-up",
    "ray": "Ray",
    "vllm": "vLLM",
    "verl": "verl",
    "environment": "environment variables",
    "memory": "memory and /dev/shm",
    "container": "container",
    "multinode": "multi-node",
}


class Finding(NamedTuple):
    """What a look gave: a state, what was seen, and (for a warning or an error) the command that cures it."""

    state: str
    evidence: str
    fix: str = ""


class Check(NamedTuple):
    """One check, as data and a function."""

    #: "container.pidfd": group and name.
    id: str
    #: What it looks at.
    title: str
    #: What goes wrong, in the words of the error it leads to.
    why: str
    link: str
    look: Callable[[Machine], Finding]

    @property
    def group(self) -> str:
        return self.id.partition(".")[0]


class Result(NamedTuple):
    """A check and what it found."""

    check: Check
    finding: Finding

    def as_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        check, finding = self
        return {
            "id": check.id,
            "group": check.group,
            "title": check.title,
            "state": finding.state,
            "evidence": finding.evidence,
            "why": check.why,
            "fix": finding.fix,
            "link": check.link,
        }


def check(id: str, title: str, why: str, link: str) -> Callable[[Callable[[Machine], Finding]], Check]:
    """Make a check of a function that looks."""

    def decorate(look: Callable[[Machine], Finding]) -> Check:
        return Check(id, title, why, link, look)

    return decorate


def ok(evidence: str) -> Finding:
    """It was looked at, and it is fine."""
    return Finding(OK, evidence)


def warning(evidence: str, fix: str) -> Finding:
    """It may go wrong, or be slow."""
    return Finding(WARNING, evidence, fix)


def error(evidence: str, fix: str) -> Finding:
    """It goes wrong."""
    return Finding(ERROR, evidence, fix)


def skipped(evidence: str) -> Finding:
    """It has no meaning on this machine; `evidence` says why."""
    return Finding(SKIPPED, evidence)


def examine(item: Check, machine: Machine) -> Result:
    """Look, once. Whatever keeps the check from looking is a state of its own, never "ok"."""
    try:
        return Result(item, item.look(machine))
    except CouldNotLook as problem:
        return Result(item, Finding(UNKNOWN, str(problem)))
    except Exception as problem:  # a fault of the check, or something nobody thought of
        return Result(item, Finding(UNKNOWN, f"the check itself failed: {type(problem).__name__}: {problem}"))
