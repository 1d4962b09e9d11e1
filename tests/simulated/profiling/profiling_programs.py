"""Starts the programs beside this file on the simulated device, with the recording ITT collector, and reads its log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[2]

#: Domains our ranges may be in: ittapi's own, or torch's without ittapi.
DOMAINS = ("verl", "PyTorch")

#: The patches under test; disabling them gives stock verl on the same simulated device.
OFF = "verl.profiler_markers,verl.profiler_tools,verl.profiler_driver,verl.profiler_torch,verl.profiler_rollout"


class ProgramError(AssertionError):
    """A program failed or took too long; the message has the end of its output."""


@dataclass
class Log:
    """What one process sent: ranges in the order they began, a dot for each level, with pause and resume between."""

    events: list[str] = field(default_factory=list)

    @property
    def ranges(self) -> list[str]:
        """Range names, one dot for each level of nesting, in the order they began."""
        return [event for event in self.events if event not in ("pause", "resume")]


def build_collector(folder: Path) -> Path:
    """Compile collector.c; returns the library."""
    library = folder / "libcollector.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(HERE / "collector.c")],
        check=True,
        timeout=60,
    )
    return library


def read_log(prefix: Path) -> Log:
    """The log of the only process that wrote to `prefix`; empty if none did.

    Raises:
        AssertionError: if a thread ends more ranges than it began, or leaves one open.
    """
    paths = sorted(prefix.parent.glob(f"{prefix.name}.[0-9]*"))
    paths = [path for path in paths if path.name[len(prefix.name) + 1 :].isdigit()]
    assert len(paths) <= 1, paths
    log, open_ranges = Log(), {}
    for line in paths[0].read_text().splitlines() if paths else ():
        _, thread, what, domain, name = line.split(" ", 4)
        stack = open_ranges.setdefault(thread, [])
        if what in ("pause", "resume"):
            log.events.append(what)
        elif domain in DOMAINS and what == "begin":
            log.events.append("." * len(stack) + name)
            stack.append(name)
        elif domain in DOMAINS:
            assert stack, f"thread {thread} ends a range it did not begin, in {paths[0].read_text()}"
            stack.pop()
    left = {thread: stack for thread, stack in open_ranges.items() if stack}
    assert not left, f"left open: {left}"
    return log


def start(script: str, folder: Path, *arguments: str, path: tuple[Path, ...] = (), **environment: str):
    """Start a program; its working directory is `folder`, its ITT logs begin with `folder`/itt.

    Args:
        script: a file beside this one.
        folder: an empty folder.
        arguments: of the program.
        path: folders to put first on its `sys.path`.
        environment: additional variables; an empty value removes one.
    """
    folder.mkdir(exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("XPU_SHIM", "VERL_"))}
    search = [*map(str, path), str(ROOT), *(entry for entry in sys.path if entry)]
    variables = {
        "SIMXPU": "1",
        "XPU_SHIM": "1",
        "PYTHONPATH": os.pathsep.join(search),
        "OMP_NUM_THREADS": "1",
        "ITT_LOG": str(folder / "itt"),
        "INTEL_ITTNOTIFY_GROUPS": "all",
        **environment,
    }
    with (folder / f"output{environment.get('RANK', '')}.txt").open("w") as output:
        return subprocess.Popen(
            [sys.executable, str(HERE / script), *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**inherited, **{name: value for name, value in variables.items() if value}},
        )


def finish(process: subprocess.Popen, folder: Path, limit: float = 280, rank: str = "") -> str:
    """Wait for a program; returns its output.

    Raises:
        ProgramError: if it fails, or is still running after `limit` seconds (it is killed then).
    """
    try:
        status: Any = process.wait(limit)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        status = f"killed after {limit:g} s"
    output = (folder / f"output{rank}.txt").read_text()
    if status != 0:
        raise ProgramError(f"{process.args[1:]} ended with {status}:\n{output[-3000:]}")
    return output


def run_together(programs: dict[Any, Callable[[], Any]]) -> dict[Any, Any]:
    """The results of calls that each run a program, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(programs, pool.map(lambda call: call(), programs.values()), strict=True))


def run(script: str, folder: Path, *arguments: str, limit: float = 280, path: tuple[Path, ...] = (), **environment):
    """Start a program with an output file as its first argument, wait, and return the JSON it wrote there."""
    process = start(script, folder, str(folder / "report.json"), *arguments, path=path, **environment)
    finish(process, folder, limit, rank=environment.get("RANK", ""))
    return json.loads((folder / "report.json").read_text())
