"""The environment variables of the simulator, read in one place."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

#: What stands in for hardware if SIMXPU_DEVICES is not set.
DEFAULT_DEVICES = "4"
#: torch.version.xpu of the torch 2.13 XPU wheels.
DEFAULT_TORCH_XPU = "20260000"

#: Name, default and meaning of each variable, for ``simxpu info`` and the README.
VARIABLES = {
    "SIMXPU": ("0", "1 turns the simulated devices on"),
    "SIMXPU_DEVICES": (
        DEFAULT_DEVICES,
        "the machine: a number of B60 cards, or e.g. B60x4, Max1550x2, iGPU+B60x2, B60x2@1GiB",
    ),
    "SIMXPU_FAULTS": ("", "faults to switch on (name) or off (-name), separated by commas; see simxpu faults"),
    "SIMXPU_TORCH_XPU": (DEFAULT_TORCH_XPU, "what torch.version.xpu reports"),
    "SIMXPU_MACHINE": ("", "name of the machine; processes share card memory only within one machine"),
    "SIMXPU_SHARED_DIR": ("/dev/shm", "directory of the accounts of shared card memory"),
    "SIMXPU_HANG_LIMIT": ("3600", "seconds after which a simulated hang ends with an error"),
    "SIMXPU_TRIPWIRE": ("", "file that gets a line when a process uses the device for the first time"),
    "SIMXPU_TRACE": ("0", "1 prints every operator that runs to stderr"),
}


def enabled(env: Mapping[str, str] = os.environ) -> bool:
    """Whether ``SIMXPU`` asks for the simulated devices.

    Raises:
        ValueError: the variable holds something else than 1, 0 or nothing.
    """
    value = env.get("SIMXPU", "")
    if value not in ("", "0", "1"):
        raise ValueError(f"SIMXPU={value!r}: allowed are 1 (on) and 0 (off). Set SIMXPU=1 to simulate Intel GPUs.")
    return value == "1"


def devices(env: Mapping[str, str] = os.environ) -> str:
    return env.get("SIMXPU_DEVICES") or DEFAULT_DEVICES


def machine(env: Mapping[str, str] = os.environ) -> str:
    """Name of the simulated machine.

    Raises:
        ValueError: it could not be part of a file name.
    """
    name = env.get("SIMXPU_MACHINE", "")
    if name and not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise ValueError(f"SIMXPU_MACHINE={name!r}: use letters, digits, '-', '_' and '.' only.")
    return name


def hang_limit(env: Mapping[str, str] = os.environ) -> float:
    """Seconds that a simulated hang lasts.

    Raises:
        ValueError: not a positive number.
    """
    text = env.get("SIMXPU_HANG_LIMIT") or VARIABLES["SIMXPU_HANG_LIMIT"][0]
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not seconds > 0:
        raise ValueError(f"SIMXPU_HANG_LIMIT={text!r}: expected a number of seconds above 0, for instance 60.")
    return seconds


def shared_dir(env: Mapping[str, str] = os.environ) -> Path:
    """Directory for what processes share; one that a restart of the machine clears."""
    given = env.get("SIMXPU_SHARED_DIR")
    if given:
        return Path(given)
    return Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
