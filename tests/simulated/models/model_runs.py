"""Start programs on simulated devices, on the installed verl or on another release of it, and read what they report."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

#: Folder of unpacked releases, named like "verl-0.8.0"; what is missing there is downloaded into the user's cache.
RELEASES = os.environ.get("XPU_SHIM_TEST_RELEASES", "")

LAUNCHER = (sys.executable, "-m", "torch.distributed.run", "--standalone")

#: Everything of the model side; without these the rest of the shim still makes the device, its backend and Ray right.
PATCHES = (
    "tensordict.synchronize,verl.attention_default,verl.attention_legacy_workers,verl.attention_packing,"
    "verl.checkpoint_offload,verl.compile_entropy,verl.critic_attention,verl.flops_counter,verl.offload_assertions,"
    "verl.padding_attention_utils,verl.rmpad_log_probs,verl.vlm_flash_functions"
)


def release(name: str, version: str) -> str:
    """A folder to put on PYTHONPATH so that `import name` gives that release; downloaded once if need be."""
    folder = Path(RELEASES or "/nonexistent") / f"{name}-{version}"
    if not (folder / name).is_dir():
        folder = Path.home() / ".cache" / "xpu-shim-tests" / f"{name}-{version}"
    if not (folder / name).is_dir():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, f"{name}=={version}"]
        subprocess.run(command, check=True, timeout=600)
    return str(folder)


def environment(*folders: str, **changes: str) -> dict[str, str]:
    """This process's environment on two simulated cards, with `folders` first on the import path."""
    environ = {
        **os.environ,
        "SIMXPU": "1",
        "SIMXPU_DEVICES": "B60x2",
        "SIMXPU_FAULTS": "avg_abort",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, [*folders, str(HERE), os.environ.get("PYTHONPATH", "")])),
    }
    for name in ("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR", "XPU_SHIM_SYSFS", "XPU_SHIM_ARMED", "XPU_SHIM_DISABLE"):
        environ.pop(name, None)
    return {**environ, **changes}


def run(script: str, *arguments: Any, folders: tuple[str, ...] = (), ranks: int = 1, **changes: str) -> str:
    """Run a script of this folder on simulated devices under torchrun; its output.

    Raises:
        AssertionError: if it fails; the message is the end of its output.
        subprocess.TimeoutExpired: after four minutes.
    """
    done = subprocess.run(
        [*LAUNCHER, f"--nproc_per_node={ranks}", str(HERE / script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        env=environment(*folders, **changes),
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


@functools.cache
def report(script: str, *arguments: Any, folders: tuple[str, ...] = (), ranks: int = 1, shim: bool = True) -> Any:
    """What rank 0 of a script printed as JSON on its last line that begins with REPORT; once for equal arguments.

    Without `shim`, only the patches of the model side are off: verl needs the platform to get this far.
    """
    off = {} if shim else {"XPU_SHIM_DISABLE": PATCHES}
    output = run(script, *arguments, folders=folders, ranks=ranks, XPU_SHIM="1", **off)
    lines = [line for line in output.splitlines() if line.startswith("REPORT ")]
    assert lines, output[-6000:]
    return json.loads(lines[-1].removeprefix("REPORT "))
