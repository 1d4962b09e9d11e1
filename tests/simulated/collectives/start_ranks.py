"""Starts `rank.py` once per rank, on simulated devices, and reads what each rank reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class RanksError(AssertionError):
    """A rank failed or took too long; the message has the end of its output."""


def run(
    sections: tuple[str, ...], ranks: int, folder: Path, limit: float = 400, **environment: str
) -> list[dict[str, Any]]:
    """Run sections (`section_<name>.py`) on `ranks` ranks; each writes `<rank>.json` into `folder`.

    Args:
        sections: their names, in order. One start for several saves their imports.
        ranks: how many processes.
        folder: an empty folder for reports, output and the rendezvous file.
        limit: seconds after which the ranks are stopped.
        environment: additional variables.

    Returns:
        The reports, by rank: section to row to what was seen.

    Raises:
        RanksError: if a rank ends with an error or the limit is reached.
    """
    processes = []
    for rank in range(ranks):
        output = (folder / f"{rank}.log").open("w")
        processes.append(
            subprocess.Popen(
                [sys.executable, str(HERE / "rank.py"), *sections],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=HERE,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                    "OMP_NUM_THREADS": "1",
                    "SIMXPU": "1",
                    # The start-up hook stays out: a section installs and removes the patches itself.
                    "XPU_SHIM": "0",
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                    "RENDEZVOUS": (folder / "rendezvous").as_uri(),
                    "REPORT": str(folder / f"{rank}.json"),
                    "LIMIT": str(limit),
                    **environment,
                },
            )
        )
    # The ranks print where they are at the limit; give them the time for it.
    deadline = time.monotonic() + limit + 20
    try:
        while any(process.poll() is None for process in processes):
            failed = [process.returncode for process in processes if process.poll()]
            if failed or time.monotonic() > deadline:
                break
            time.sleep(0.1)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for rank, process in enumerate(processes):
        if process.returncode:
            # A killed rank waited for one that failed first: report that one.
            culprit = next((i for i, p in enumerate(processes) if p.returncode not in (0, -9)), rank)
            reason = (
                f"no end after {limit:.0f} s"
                if time.monotonic() > deadline
                else f"exit {processes[culprit].returncode}"
            )
            tail = (folder / f"{culprit}.log").read_text()[-6000:]
            raise RanksError(f"{' '.join(sections)}: rank {culprit} of {ranks} ({reason}):\n{tail}")
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
