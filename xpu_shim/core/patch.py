"""`Patch`, the declaration a patch file starts with, and the two things it may say of itself while it is applied."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xpu_shim.core.install import Install

__all__ = ["PROCESSES", "Install", "NotForMe", "Patch", "PatchDeclarationError", "Retire", "Target"]

#: Kinds of process a patch may be meant for: the user's program, a training rank, a vLLM server or engine.
PROCESSES = ("driver", "worker", "rollout")


class PatchDeclarationError(ValueError):
    """A `Patch` literal contradicts itself; raised while its file is imported, with the field and what is allowed."""


class NotForMe(Exception):
    """Raised by `Install.skip`: the patch has no work in this process. The state becomes `skipped:<reason>`."""


class Retire(NotForMe):
    """Raised by `Install.retire`: upstream is right already. The state becomes `retired:<reason>`."""


@dataclass(frozen=True)
class Target:
    """What a patch changes: `qualname` in `module`; `optional` where some supported release lacks it."""

    module: str
    qualname: str
    optional: bool = False

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read `module:qualname` with an optional trailing `?`.

        Raises:
            PatchDeclarationError: for any other form.
        """
        match = re.fullmatch(r"([A-Za-z_][\w.]*):([A-Za-z_][\w.]*)(\?)?", text)
        if match is None:
            raise PatchDeclarationError(f"target {text!r} is not of the form module:qualname or module:qualname?")
        return cls(match[1], match[2], bool(match[3]))

    def __str__(self) -> str:
        return f"{self.module}:{self.qualname}"


@dataclass(frozen=True)
class Patch:
    """A patch's story as data. The start-up table, the command line, the docs and the contract tests come from it."""

    #: "torch.fsdp2_sum": the folder under `patches` and a name.
    id: str
    #: "module:qualname" of all it changes or adds; a trailing "?" marks one that some supported release lacks.
    targets: tuple[str, ...]
    #: What a user sees without it, with the error text.
    why: str
    #: What is done about it.
    how: str
    #: When this file can be deleted.
    remove_when: str
    #: Root package name to (first supported version, first unsupported version).
    versions: Mapping[str, tuple[str, str]]
    #: Links to the upstream reports or changes.
    upstream: tuple[str, ...] = ()
    #: Kinds of process in which it is installed.
    processes: tuple[str, ...] = PROCESSES
    #: Whether training is expected to break or go wrong without it (reported louder when it cannot be applied).
    required: bool = True
    #: Whether it replaces a whole body instead of wrapping: then the body's fingerprint is checked before applying.
    replaces_body: bool = False
    #: `targets`, parsed.
    parsed: tuple[Target, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z_]+\.[a-z0-9_]+", self.id):
            raise PatchDeclarationError(f"id {self.id!r} is not of the form area.name in lower case")
        if not self.targets:
            raise PatchDeclarationError(f"{self.id}: no targets")
        unknown = set(self.processes) - set(PROCESSES)
        if unknown or not self.processes:
            raise PatchDeclarationError(f"{self.id}: processes {self.processes!r}; allowed are {PROCESSES}")
        for package, bounds in self.versions.items():
            if len(bounds) != 2 or not all(re.fullmatch(r"\d+(\.\d+)*", bound) for bound in bounds):
                raise PatchDeclarationError(
                    f"{self.id}: versions[{package!r}] = {bounds!r}; two version numbers are needed, "
                    "the first supported and the first unsupported one"
                )
        object.__setattr__(self, "parsed", tuple(Target.parse(text) for text in self.targets))

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules of its targets, each once, in order."""
        return tuple(dict.fromkeys(target.module for target in self.parsed))

    def targets_in(self, module: str) -> tuple[Target, ...]:
        """Its targets in one module."""
        return tuple(target for target in self.parsed if target.module == module)


def __getattr__(name: str) -> type:
    # `Install` is named here for patch files' annotations; its module pulls in more than a declaration needs.
    if name == "Install":
        from xpu_shim.core.install import Install

        return Install
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
