"""`xpu-shim run`: runs a command, collects the report each of its processes wrote, and shows processes x patches."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

#: How a state is shown; the worst of several processes is what one looks for.
_STYLES = {"applied": "green", "late": "yellow", "drifted": "red", "failed": "bold red", "retired": "cyan"}


def run(argv: Sequence[str]) -> tuple[int, list[dict[str, Any]]]:
    """Run `argv` with the streams of this process; returns its exit status and the reports, in order of process id.

    A signal sent to this process is passed on, and the reports are collected all the same. A command that cannot be
    started gives status 127 (not found) or 126, as in a shell.
    """
    with tempfile.TemporaryDirectory(prefix="xpu-shim-run-") as folder:
        environment = dict(os.environ, XPU_SHIM_REPORT_DIR=folder)
        try:
            child = subprocess.Popen(list(argv), env=environment)
        except OSError as error:
            from xpu_shim.core.log import logger

            logger().error("%s cannot be run: %s", argv[0], error.strerror)
            return (127 if isinstance(error, FileNotFoundError) else 126), []
        previous = {
            number: signal.signal(number, lambda received, frame: child.send_signal(received))
            for number in (signal.SIGTERM, signal.SIGHUP)
        }
        # An interrupt from the keyboard reaches the whole foreground group by itself; here it must only not end us
        # before the report.
        previous[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            status = child.wait()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        return (128 - status if status < 0 else status), collect(folder)


def collect(folder: str | Path) -> list[dict[str, Any]]:
    """The reports in a directory, in order of process id; one that is half written is left out."""
    reports = []
    for path in Path(folder).glob("*.json"):
        try:
            reports.append(json.loads(path.read_text(encoding="utf-8")))
        except ValueError:
            continue
    return sorted(reports, key=lambda report: report["pid"])


def show(reports: list[dict[str, Any]], console: Console, everything: bool = False) -> None:
    """Print one row per process: what it is, whether the shim was active, and each patch's state and reason."""
    if not reports:
        console.print(
            "xpu-shim: no process of the command looked up verl, or the shim was off (XPU_SHIM=0); "
            "`xpu-shim status` shows whether the hook is installed."
        )
        return
    table = Table(title="what each process did", title_justify="left", show_lines=True)
    table.add_column("process", no_wrap=True)
    table.add_column("patches", overflow="fold")
    for report in reports:
        head = f"{report['pid']} {report['process']}\n{report['name'][:40]}"
        table.add_row(head.replace("[", r"\["), "\n".join(_lines(report, everything)))
    console.print(table)
    for line in counts(reports):
        console.print(line)


def _lines(report: dict[str, Any], everything: bool) -> list[str]:
    if not report["active"] and not everything:
        return [f"not active: {report['reason']}".replace("[", r"\[")] + [
            f"{patch_id} {record['state']}: {record['reason']}".replace("[", r"\[")
            for patch_id, record in report["patches"].items()
            if record["reason"] != report["reason"]
        ]
    grouped: dict[tuple[str, str], list[str]] = {}
    for patch_id, record in report["patches"].items():
        if record["state"] != "armed" or everything:
            grouped.setdefault((record["state"], record["reason"]), []).append(patch_id)
    lines = []
    for (state, reason), ids in sorted(grouped.items()):
        style = _STYLES.get(state)
        text = f"{state}: {', '.join(ids)}" + (f" ({reason})" if reason else "")
        text = text.replace("[", r"\[")
        lines.append(f"[{style}]{text}[/]" if style else text)
    return lines or ["no target was imported"]


def counts(reports: list[dict[str, Any]]) -> list[str]:
    """One line per state: how many (process, patch) pairs are in it."""
    total: dict[str, int] = {}
    for report in reports:
        for record in report["patches"].values():
            total[record["state"]] = total.get(record["state"], 0) + 1
    return [f"{len(reports)} processes: " + ", ".join(f"{number} {state}" for state, number in sorted(total.items()))]
