"""The `xpu-shim` command: what is installed, what it does, whether upstream is still what it expects."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

import xpu_shim


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status (0 fine, 1 something is wrong, 2 wrong usage)."""
    parser = argparse.ArgumentParser(prog="xpu-shim", description="Run unchanged verl commands on Intel GPUs.")
    parser.add_argument("--version", action="version", version=f"xpu-shim {xpu_shim.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], summary: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=summary, description=summary)
        sub.set_defaults(func=run)
        return sub

    sub = command("status", _status, "Is the hook installed here, which start-up files run, what is it waiting for?")
    sub.add_argument("--json", action="store_true", help="machine-readable, on stdout")
    sub = command("list", _list, "All patches with what they change and for which versions.")
    sub.add_argument("--json", action="store_true", help="machine-readable, on stdout")
    sub = command("explain", _explain, "One patch's story: what goes wrong without it, what it does, when it goes.")
    sub.add_argument("id", help="a patch id as `xpu-shim list` shows it")
    sub = command("verify", _verify, "Are the installed releases, or one that is named, what the patches expect?")
    sub.add_argument("--release", metavar="PACKAGE==VERSION", help="check a release, downloaded without dependencies")
    sub.add_argument("--directory", metavar="DIR", help="with --release: an unpacked copy of it, instead of a download")
    sub.add_argument("--update-lock", action="store_true", help="with --release: write its fingerprints to the lock")
    sub.add_argument("--json", action="store_true", help="machine-readable, on stdout")
    sub = command("run", _run, "Run a command and show what each of its processes did with each patch.")
    sub.add_argument("--json", metavar="FILE", help="write the report as JSON ('-' for stdout) instead of a table")
    sub.add_argument("--all", action="store_true", help="also show patches that no process met")
    sub.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- CMD", help="the command and its arguments")
    _add_doctor(commands)

    options = parser.parse_args(arguments)
    try:
        return options.func(options)
    except BrokenPipeError:
        # The reader (head, less) has gone: not worth a traceback. The interpreter flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _add_doctor(commands: argparse._SubParsersAction) -> None:
    from xpu_shim.doctor import add_parser

    add_parser(commands)


def _console(error: bool = False) -> Console:
    stream = sys.stderr if error else sys.stdout
    # Piped output is read by programs and people with wide screens; 80 columns would cut words in half.
    return Console(file=stream, width=None if stream.isatty() else 160, highlight=False)


def _status(options: argparse.Namespace) -> int:
    from xpu_shim import environment_report

    report = environment_report.collect()
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        environment_report.show(report, _console())
    return 0 if report["hook"]["installed"] or report["hook"]["switched_off"] else 1


def _patches() -> dict:
    from xpu_shim._targets import PATCHES

    return {patch_id: importlib.import_module(name).PATCH for patch_id, name in PATCHES.items()}


def _list(options: argparse.Namespace) -> int:
    found = _patches()
    if options.json:
        fields = ("why", "how", "remove_when", "versions", "upstream", "processes", "required")
        rows = {
            patch_id: {"targets": [str(target) for target in patch.parsed]}
            | {name: getattr(patch, name) for name in fields}
            for patch_id, patch in found.items()
        }
        print(json.dumps(rows, indent=2))
        return 0
    table = Table(box=None, pad_edge=False)
    for title in ("id", "what it does", "versions", "processes"):
        table.add_column(title, overflow="fold", no_wrap=title == "id")
    for patch_id, patch in found.items():
        versions = ", ".join(f"{name} [{low}, {high})" for name, (low, high) in patch.versions.items())
        table.add_row(patch_id, patch.how, versions.replace("[", r"\["), ", ".join(patch.processes))
    _console().print(table)
    return 0


def _explain(options: argparse.Namespace) -> int:
    found = _patches()
    patch = found.get(options.id)
    if patch is None:
        import difflib

        near = difflib.get_close_matches(options.id, found, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else "`xpu-shim list` shows all."
        print(f"xpu-shim explain: no patch has the id {options.id!r}; {hint}", file=sys.stderr)
        return 2
    versions = ", ".join(f"{name} from {low}, below {high}" for name, (low, high) in patch.versions.items())
    rows = [
        (
            "targets",
            "\n".join(str(target) + (" (not in every release)" if target.optional else "") for target in patch.parsed),
        ),
        ("without it", patch.why),
        ("what it does", patch.how),
        ("versions", versions),
        ("processes", ", ".join(patch.processes)),
        ("upstream", "\n".join(patch.upstream) or "-"),
        ("goes when", patch.remove_when),
        ("switch off", f"XPU_SHIM_DISABLE={patch.id}"),
    ]
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for title, text in rows:
        table.add_row(title, text.replace("[", r"\["))
    console = _console()
    console.print(patch.id, style="bold")
    console.print(table)
    return 0


def _verify(options: argparse.Namespace) -> int:
    from xpu_shim import verify

    if (options.directory or options.update_lock) and not options.release:
        print("xpu-shim verify: --directory and --update-lock go with --release PACKAGE==VERSION", file=sys.stderr)
        return 2
    try:
        rows = (
            verify.release(options.release, options.directory, options.update_lock)
            if options.release
            else verify.installed()
        )
    except verify.VerifyError as error:
        print(f"xpu-shim verify: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps([row._asdict() for row in rows], indent=2))
    else:
        verify.show(rows, _console())
    return 1 if any(row.state in ("drifted", "missing") for row in rows) else 0


def _run(options: argparse.Namespace) -> int:
    from xpu_shim import run_report

    argv = options.argv[1:] if options.argv[:1] == ["--"] else options.argv
    if not argv:
        print("xpu-shim run: no command; write xpu-shim run -- python -m verl.trainer.main_ppo …", file=sys.stderr)
        return 2
    status, processes = run_report.run(argv)
    if options.json == "-":
        print(json.dumps(processes, indent=2))
    elif options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(processes, file, indent=2)
    else:
        # stderr: stdout is the command's, and may be read by another program.
        run_report.show(processes, _console(error=True), everything=options.all)
    return status
