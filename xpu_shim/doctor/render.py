"""Tables for people. Everything here takes plain data and a console."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from xpu_shim.doctor.check import ERROR, GROUPS, OK, SKIPPED, UNKNOWN, WARNING

STYLES = {OK: "green", WARNING: "yellow", ERROR: "bold red", SKIPPED: "dim", UNKNOWN: "magenta"}


def console() -> Console:
    """Standard output; wide where it is not a terminal, so that commands are not cut."""
    import sys

    return Console(width=None if sys.stdout.isatty() else 160, highlight=False, soft_wrap=False)


def checks(report: dict[str, Any], out: Console, everything: bool = False) -> None:
    """The checks by group; fine and not applicable ones as a count unless `everything`."""
    other = report.get("sysfs", "/sys")
    if other != "/sys":
        out.print(
            Text(
                f"Cards are read from {other} (XPU_SHIM_SYSFS), not from this machine's /sys. Such cards are simulated: "
                "findings about drivers, libraries and the builds of torch and vLLM say what real ones would need here.\n",
                "yellow",
            )
        )
    hidden = 0
    for group, title in GROUPS.items():
        mine = [item for item in report["checks"] if item["group"] == group]
        if not mine:
            continue
        # Who asked for a probe wants to see what it did.
        shown = [
            item
            for item in mine
            if everything or item["state"] not in (OK, SKIPPED) or item["id"].startswith("torch.probe_")
        ]
        quiet = len(mine) - len(shown)
        fine = sum(item["state"] == OK for item in mine if item not in shown)
        hidden += quiet
        numbers = (f"{fine} ok" if fine else "", f"{quiet - fine} not applicable" if quiet - fine else "")
        rest = ", ".join(text for text in numbers if text)
        if group == "hardware" and not everything:
            rest += "".join(
                f": {item['evidence']}" for item in mine if item["id"] == "hardware.gpus" and item["state"] == OK
            )
        out.print(Text.assemble((title, "bold"), f"  {rest}" if rest else ""))
        if not shown:
            continue
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column(no_wrap=True, min_width=14)
        table.add_column(overflow="fold")
        for item in shown:
            table.add_row(
                Text(item["state"], STYLES[item["state"]]), Text.assemble((item["id"], "bold"), f"  {item['title']}")
            )
            table.add_row("", Text(item["evidence"]))
            if item["state"] in (WARNING, ERROR, UNKNOWN):
                table.add_row("", Text(f"why: {item['why']}", "dim"))
                if item["fix"]:
                    table.add_row("", Text.assemble("fix: ", (item["fix"], "cyan")))
                table.add_row("", Text(f"see: {item['link']}", "dim"))
        out.print(table)
    out.print(Text.assemble(summary(report["counts"]), ("   (--all shows every check)" if hidden else "", "dim")))


def summary(counts: dict[str, int]) -> Text:
    """One line with the number of checks in each state."""
    parts: list[Any] = [f"{sum(counts.values())} checks: "]
    for number, (state, count) in enumerate(counts.items()):
        parts += [", " if number else "", (f"{count} {state}", STYLES[state])]
    return Text.assemble(*parts)


def hits(found: Sequence[dict[str, Any]], out: Console) -> None:
    """Known failures in a log."""
    if not found:
        out.print("No known failure in this log. `xpu-shim doctor` looks at the machine itself.")
        return
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for hit in found:
        times = f", {hit['count']} times" if hit["count"] > 1 else ""
        kind = " (usually follows from another error)" if hit["consequence"] else ""
        table.add_row(Text(hit["id"], "bold red"), Text(f"line {hit['line']}{times}{kind}: {hit['text']}"))
        table.add_row("", Text(f"cause: {hit['cause']}"))
        table.add_row("", Text.assemble("cure: ", (hit["fix"], "cyan")))
        table.add_row("", Text(f"see: {' '.join(hit['links'][:3])}", "dim"))
    out.print(table)


def policy(rows: Sequence[dict[str, Any]], out: Console) -> None:
    """The environment policy."""
    table = Table(box=None, pad_edge=False, show_lines=False)
    for title in ("variable", "now", "policy", "here", "when", "why"):
        table.add_column(title, overflow="fold", no_wrap=title in ("policy", "here"))
    for row in rows:
        wanted = f"{row['action']} {row['value']}".strip()
        style = "" if row["here"] != "-" else "dim"
        table.add_row(
            *map(
                Text,
                (
                    row["name"],
                    row["now"] or "-",
                    wanted,
                    row["here"],
                    row["when"],
                    f"{row['why']} {row['evidence'][0]}",
                ),
            ),
            style=style,
        )
    out.print(table)


def nodes(report: dict[str, Any], out: Console, everything: bool = False) -> None:
    """Every node of a Ray cluster, and what differs between them."""
    for node in report["nodes"]:
        out.print(Text(f"\nnode {node['name']} ({node['node_id'][:8]})", "bold underline"))
        if "problem" in node:
            out.print(Text(f"{node['problem']}", "bold red"))
            if node.get("fix"):
                out.print(Text.assemble("fix: ", (node["fix"], "cyan")))
            continue
        checks(node["report"], out, everything)
    if report["differences"]:
        out.print(Text("\ndifferent between nodes", "bold underline"))
        table = Table(box=None, pad_edge=False)
        for title in ("what", "value", "nodes"):
            table.add_column(title, overflow="fold")
        for difference in report["differences"]:
            style = STYLES[difference["state"]]
            for value, names in difference["values"].items():
                table.add_row(Text(difference["what"], style), Text(value), Text(", ".join(names)))
        out.print(table)
    else:
        out.print(f"\n{len(report['nodes'])} node(s), nothing differs between them")
