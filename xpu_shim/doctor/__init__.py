"""`xpu-shim doctor`: why does it not run on this machine, and what is to be done?

- `machine`: all that checks read goes through one object; a test hands in a directory tree in its place.
- `check`, `checks/`: what a check is, and the checks, one file a check or a small family.
- `examine`: runs them. `facts`: what several of them need to know.
- `probe`, `ray_nodes`, `log`, `policy`: real work on devices, every node of a cluster, a log, the environment policy.
- `signatures`, `notes`: known failures by their words, for logs and for exceptions that pass through patched calls.
- `reports`: public reports, and what the shim does about each.

torch is never imported here, only in children with a time limit: a driver that crashes or hangs is a finding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

__all__ = ["add_parser"]


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add the subcommands `doctor` and `env`; each sets `func`, which takes the options and returns the exit status."""
    from xpu_shim.doctor.command import add_doctor, add_env

    add_doctor(commands)
    add_env(commands)
