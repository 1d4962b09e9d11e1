"""Fixtures of the simulator's own tests.

Tests of one process use the devices in the process of pytest; everything that depends on the environment or needs
several processes runs in children, through ``python`` and ``torchrun``, each with a time limit.
"""

import os
import signal
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

WORKERS = Path(__file__).parent / "workers"
#: The variables that decide what a process sees; tests set them themselves.
VARIABLES = ("ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY", "ONEAPI_DEVICE_SELECTOR", "XPU_SHIM_SYSFS", "RANK")
#: Unbuffered, `print` writes a line and its end separately, and the lines of two ranks run into each other.
UNWANTED = (*VARIABLES, "PYTHONUNBUFFERED")


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes long; not part of the default run")


def clean_environment() -> dict[str, str]:
    """The environment without settings that tests make, on a simulated machine of their own."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("SIMXPU") and k not in UNWANTED}
    return env | {
        "SIMXPU": "1",
        "SIMXPU_MACHINE": f"test-{uuid.uuid4().hex[:12]}",
        "OMP_NUM_THREADS": "1",
        "XPU_SHIM": "0",
    }


@pytest.fixture(scope="session", autouse=True)
def simulated_devices():
    """Four simulated cards in this process, whatever the environment says."""
    env = clean_environment()
    for name in [n for n in os.environ if n.startswith("SIMXPU") or n in VARIABLES]:
        del os.environ[name]
    os.environ.update(env)
    import simxpu
    import torch

    if not torch._C._has_xpu:
        simxpu.install()
    assert torch.xpu.device_count() == 4
    torch.set_num_threads(1)
    yield
    for path in Path("/dev/shm").glob(f"simxpu-{os.getuid()}-test-*.memory"):
        if env["SIMXPU_MACHINE"] in path.name:
            path.unlink(missing_ok=True)


@pytest.fixture
def environment() -> dict[str, str]:
    """The environment for a child, on a simulated machine of its own."""
    return clean_environment()


@dataclass
class Outcome:
    """How a child process ended."""

    code: int | None  #: exit status, None if it had to be stopped
    out: str
    err: str

    def check(self) -> "Outcome":
        assert self.code == 0, (
            f"exit status {self.code}\n--- stdout\n{self.out[-4000:]}\n--- stderr\n{self.err[-6000:]}"
        )
        return self

    @property
    def words(self) -> list[str]:
        return self.out.split()


def run(command: list[str], timeout: float, env: dict[str, str | None]) -> Outcome:
    full = clean_environment()
    for name, value in env.items():
        if value is None:
            full.pop(name, None)
        else:
            full[name] = value
    process = subprocess.Popen(
        command, env=full, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=timeout)
        return Outcome(process.returncode, out, err)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its own session: the children go with it
        out, err = process.communicate()
        return Outcome(None, out, err)


@pytest.fixture
def python():
    """``python(code, timeout=60, NAME=value, ...)``: runs code in a child with these variables set (None: unset)."""

    def start(code: str, *arguments: str, timeout: float = 120, **env: str | None) -> Outcome:
        return run([sys.executable, "-c", code, *arguments], timeout, env)

    return start


@pytest.fixture
def torchrun():
    """``torchrun(worker, ranks, ...)``: runs a script of tests/workers on several ranks of this machine."""

    def start(worker: str, ranks: int, *arguments: str, timeout: float = 240, **env: str | None) -> Outcome:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        return run([*command, str(WORKERS / worker), *arguments], timeout, env)

    return start
