"""Run as a program: are the overrides of docs/profiling.md ones that verl's own configuration takes? Writes JSON."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


def commands(page: str) -> list[list[str]]:
    """The overrides of each indented command of the page that has any."""
    found = []
    for block in re.findall(r"(?:^ {4}.*\n)+", page, re.MULTILINE):
        words = shlex.split(block.replace("\\\n", " "))
        overrides = [word for word in words if re.match(r"\+?[a-z_]+(\.[a-z_]+)+=", word)]
        if overrides:
            found.append(overrides)
    return found


def main() -> None:
    import tiny

    page = Path(sys.argv[2]).read_text()
    inline = re.findall(r"`(\+[a-z_.]+=\w+)`", page)
    report = {}
    for overrides in [*commands(page), *([override] for override in inline)]:
        config = tiny.configuration(*overrides)
        profiler = config.actor_rollout_ref.actor.profiler
        report[" ".join(overrides)] = [profiler.tool, profiler.enable]
    Path(sys.argv[1]).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
