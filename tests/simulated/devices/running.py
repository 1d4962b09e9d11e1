"""Start programs on simulated cards, and other releases of a package in place of the installed one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

#: Folder of unpacked releases, named like "ray-2.57.1"; what is missing there is downloaded into the cache.
RELEASES = os.environ.get("XPU_SHIM_TEST_RELEASES", "")


def environment(**changes: str | None) -> dict[str, str]:
    """This process's environment on four simulated cards, with `changes` (None removes a variable)."""
    environ = {
        **os.environ,
        "SIMXPU": "1",
        "SIMXPU_DEVICES": "B60x4",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
    }
    for name in ("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR", "XPU_SHIM_SYSFS", "XPU_SHIM_ARMED"):
        environ.pop(name, None)
    for name, value in changes.items():
        if value is None:
            environ.pop(name, None)
        else:
            environ[name] = value
    return environ


def run(*arguments: str, timeout: float = 200, check: bool = True, **changes: str | None) -> str:
    """Run this interpreter with `arguments`; what it printed on both streams.

    Raises:
        AssertionError: if it failed and `check` is set; the message is the end of its output.
    """
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        env=environment(**changes),
    )
    assert not check or done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def answer(code: str, **changes: str | None):
    """Run `code`, whose last line of output is JSON; that, decoded."""
    return json.loads(run("-c", code, **changes).strip().splitlines()[-1])


def ranks(script: str, count: int, *arguments: str, **changes: str | None) -> str:
    """Run a script of this folder on `count` ranks under torchrun; their output."""
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}")
    return run(*launcher, str(HERE / script), *arguments, **changes)


def release(name: str, version: str) -> str:
    """A folder to put on PYTHONPATH so that `import name` gives that release; downloaded once if need be."""
    folder = Path(RELEASES or "/nonexistent") / f"{name}-{version}"
    if not (folder / name).is_dir():
        folder = Path.home() / ".cache" / "xpu-shim-tests" / f"{name}-{version}"
    if not (folder / name).is_dir():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, f"{name}=={version}"]
        subprocess.run(command, check=True, timeout=600)
    return str(folder)
