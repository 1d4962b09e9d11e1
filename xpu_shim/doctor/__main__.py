"""`python -m xpu_shim.doctor`: the doctor alone, with `env` as a subcommand of the same name."""

from __future__ import annotations

import argparse
import sys

from xpu_shim.doctor import add_parser


def main() -> int:
    """Run `doctor`, or another subcommand if one is named first; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m xpu_shim.doctor")
    commands = parser.add_subparsers(dest="command", required=True)
    add_parser(commands)
    arguments = sys.argv[1:]
    if not arguments or arguments[0] not in commands.choices:
        arguments = ["doctor", *arguments]
    options = parser.parse_args(arguments)
    return options.func(options)


if __name__ == "__main__":
    sys.exit(main())
