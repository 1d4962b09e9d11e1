"""What the shim adds to `python -c pass`, in instructions (deterministic, unlike seconds), with others beside it.

    python tests/benchmarks/startup.py [PYTHON ...]

Needs valgrind. Each variant gets a fresh venv without pip of each interpreter (default: this one), its packages, one
warm-up run (so that bytecode is cached), and one run under cachegrind. Hash randomisation and address space layout are
switched off, which makes two runs of the same variant equal to a few instructions. Exit status 1 if the shim is over
its budget: +7 % armed, +2 % switched off (on 3.13 any .pth file at all costs more than that; the row says so).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUDGET, BUDGET_OFF = 7.0, 2.0

#: Title, what pip installs, files put into site-packages, environment, whether the row has a budget.
VARIANTS = (
    ("bare", (), {}, {}, None),
    ("a .pth with a comment", (), {"empty.pth": "# nothing\n"}, {}, None),
    ("xpu-shim", ("SHIM",), {}, {}, BUDGET),
    ("xpu-shim, XPU_SHIM=0", ("SHIM",), {}, {"XPU_SHIM": "0"}, BUDGET_OFF),
    ("autowrapt, idle", ("autowrapt",), {}, {}, None),
    (
        "opentelemetry-instrument, all disabled",
        ("opentelemetry-instrumentation", "opentelemetry-distro"),
        {},
        {
            "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "*",
            "PYTHONPATH": "opentelemetry/instrumentation/auto_instrumentation",
        },
        None,
    ),
    ("ddtrace-run", ("ddtrace",), {}, {"PYTHONPATH": "ddtrace/bootstrap", "DD_TRACE_ENABLED": "true"}, None),
)


def clean(extra: dict[str, str]) -> dict[str, str]:
    """An environment without Python's and the shim's own variables, in which runs repeat exactly."""
    keep = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "XPU_SHIM", "SIMXPU"))}
    return {**keep, "PYTHONHASHSEED": "0", **extra}


def instructions(python: Path, environment: dict[str, str]) -> int:
    """Instructions of `python -c pass` under cachegrind.

    Raises:
        RuntimeError: if valgrind fails or prints no count.
    """
    run = [str(python), "-c", "pass"]
    subprocess.run(run, env=environment, check=True, timeout=120, capture_output=True)
    valgrind = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    result = subprocess.run([*valgrind, *run], env=environment, capture_output=True, text=True, timeout=600)
    match = re.search(r"I\s+refs:\s+([\d,]+)", result.stderr)
    if not match:
        raise RuntimeError(f"valgrind gave no count: {result.stderr[-500:]}")
    return int(match[1].replace(",", ""))


def measure(interpreter: str, variant: tuple, folder: Path, wheel: Path) -> int:
    """Build the variant's venv and count."""
    _, packages, files, settings, _ = variant
    subprocess.run([interpreter, "-m", "venv", "--without-pip", str(folder)], check=True, env=clean({}), timeout=120)
    python = folder / "bin" / "python"
    site = next((folder / "lib").glob("python*")) / "site-packages"
    for package in packages:
        what = [str(wheel), "--no-deps"] if package == "SHIM" else [package]
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", *what]
        subprocess.run(pip, check=True, env=clean({"XPU_SHIM": "0"}), timeout=600, capture_output=True)
    for name, text in files.items():
        (site / name).write_text(text)
    extra = {key: str(site / value) if key == "PYTHONPATH" else value for key, value in settings.items()}
    return instructions(python, clean(extra))


def main() -> int:
    if not shutil.which("valgrind"):
        print("valgrind is not on PATH (on Debian: apt-get install valgrind)", file=sys.stderr)
        return 2
    over = False
    with tempfile.TemporaryDirectory() as scratch:
        pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", scratch, str(ROOT)]
        subprocess.run(pip, check=True, env=clean({"XPU_SHIM": "0"}), timeout=600)
        wheel = next(Path(scratch).glob("*.whl"))
        for number, interpreter in enumerate(sys.argv[1:] or [sys.executable]):
            version = subprocess.run([interpreter, "-V"], capture_output=True, text=True, check=True).stdout.strip()
            print(f"\n{version} ({interpreter})\n{'variant':42} {'instructions':>14} {'against bare':>13}")
            bare = 0
            for place, variant in enumerate(VARIANTS):
                if number and variant[1][:1] != ("SHIM",) and variant[1]:
                    continue  # the others once: they are for scale
                try:
                    count = measure(interpreter, variant, Path(scratch) / f"venv-{number}-{place}", wheel)
                except (subprocess.CalledProcessError, RuntimeError) as error:
                    print(f"{variant[0]:42} could not be measured: {str(error)[:200]}")
                    over = over or variant[4] is not None
                    continue
                bare = bare or count
                percent = 100 * (count / bare - 1)
                limit = variant[4]
                note = "" if limit is None else f"  (budget +{limit:g} %)" + ("  OVER" if percent > limit else "")
                over = over or (limit is not None and percent > limit)
                print(f"{variant[0]:42} {count:14,} {percent:+12.1f} %{note}", flush=True)
    return 1 if over else 0


if __name__ == "__main__":
    raise SystemExit(main())
