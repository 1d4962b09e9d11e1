"""The subcommands `doctor` and `env`: options, what they call, exit status."""

from __future__ import annotations

import argparse
import json
import sys

from xpu_shim.doctor import examine
from xpu_shim.doctor.check import ERROR, GROUPS
from xpu_shim.doctor.machine import CouldNotLook, Machine

_STATUS = "Exit status: 0 fine, 1 warnings or things that could not be looked at, 2 wrong usage, 3 errors."


def add_doctor(commands: argparse._SubParsersAction) -> None:
    """Add `doctor`."""
    summary = "Why does it not run on this machine, and what is to be done?"
    parser = commands.add_parser("doctor", help=summary, description=summary, epilog=_STATUS)
    parser.set_defaults(func=_doctor)
    parser.add_argument(
        "--group",
        action="append",
        default=[],
        metavar="GROUP",
        help=f"only this group, may be repeated: {', '.join(GROUPS)}",
    )
    parser.add_argument("--all", action="store_true", help="also show what is fine or not applicable")
    parser.add_argument("--json", action="store_true", help="machine-readable, on stdout")
    parser.add_argument(
        "--timeout", type=_seconds, default=60.0, metavar="SECONDS", help="longest wait for a child (60)"
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--probe", action="store_true", help="also compute on every device, and with all of them together"
    )
    kinds.add_argument(
        "--ray", action="store_true", help="on every node of the Ray cluster, and what differs between them"
    )
    kinds.add_argument("--log", metavar="FILE", help="name known failures in a log instead ('-' for stdin)")


def add_env(commands: argparse._SubParsersAction) -> None:
    """Add `env`."""
    summary = "The environment policy: what the shim sets, removes or recommends here, and why."
    parser = commands.add_parser("env", help=summary, description=summary, epilog=_STATUS)
    parser.set_defaults(func=_env)
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--export", action="store_true", help='as shell lines: eval "$(xpu-shim env --export)"')
    kinds.add_argument("--json", action="store_true", help="machine-readable, on stdout")


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 3600 seconds")
    return value


def _complain(command: str, message: object) -> int:
    print(f"xpu-shim {command}: {message}", file=sys.stderr)
    return 2


def _doctor(options: argparse.Namespace) -> int:
    from xpu_shim.doctor import render

    if options.log is not None:
        return _log(options)
    try:
        chosen = examine.select(options.group)
    except examine.UnknownGroupError as error:
        return _complain("doctor", error)
    if options.ray:
        return _ray(options)
    machine = Machine(limit=options.timeout)
    results = examine.run(machine, chosen)
    if options.probe:
        from xpu_shim.doctor import probe

        # A limit that was not given is for quick children; the first kernel of a process takes longer.
        limit = options.timeout if options.timeout != 60.0 else None
        results += probe.run(machine, limit or probe.DEVICE_LIMIT, limit or probe.COLLECTIVE_LIMIT)
    report = {"sysfs": machine.sysfs, **examine.as_dict(results)}
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        render.checks(report, render.console(), options.all)
    return report["status"]


def _log(options: argparse.Namespace) -> int:
    from xpu_shim.doctor import log, render

    try:
        found = [hit.as_dict() for hit in log.scan_file(options.log)]
    except OSError as error:
        return _complain("doctor", f"--log {options.log}: {error.strerror}")
    if options.json:
        print(json.dumps({"failures": found}, indent=2))
    else:
        render.hits(found, render.console())
    return 3 if any(not hit["consequence"] for hit in found) else 1 if found else 0


def _ray(options: argparse.Namespace) -> int:
    from xpu_shim.doctor import ray_nodes, render

    try:
        report = ray_nodes.examine(options.group, limit=max(options.timeout, 60.0))
    except ray_nodes.NoClusterError as error:
        return _complain("doctor", f"--ray: {error}")
    states = [item["state"] for node in report["nodes"] for item in node.get("report", {}).get("checks", ())]
    states += [difference["state"] for difference in report["differences"]]
    states += [ERROR for node in report["nodes"] if "problem" in node]
    report["status"] = examine.status(states)
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        render.nodes(report, render.console(), options.all)
    return report["status"]


def _env(options: argparse.Namespace) -> int:
    from xpu_shim.doctor import policy, render
    from xpu_shim.intel.visibility import VisibilityError

    machine = Machine()
    try:
        rows = policy.rows(machine)
        lines = policy.exports(machine)
    except (VisibilityError, CouldNotLook) as error:
        print(f"xpu-shim env: {error}", file=sys.stderr)
        return 3
    if options.json:
        print(json.dumps(rows, indent=2))
    elif options.export:
        print("\n".join(lines))
    else:
        render.policy(rows, render.console())
    return 0
