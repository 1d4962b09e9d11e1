"""Which kind of process this is: the user's program, a training rank, or a vLLM server or engine."""

from __future__ import annotations

import os
import sys


def kind() -> str:
    """ "rollout" where `XPU_SHIM_PROCESS=rollout` was set by a server and inherited by its engines, "worker" in a Ray
    worker or a rank started by torchrun, else "driver".
    """
    if os.environ.get("XPU_SHIM_PROCESS") == "rollout":
        return "rollout"
    if "default_worker.py" in (sys.argv[0] if sys.argv else "") or "LOCAL_RANK" in os.environ:
        return "worker"
    return "driver"


def name() -> str:
    """A short name for reports: the script or module, or the title a Ray worker gave itself."""
    title = sys.modules.get("setproctitle")
    if title is not None:
        return str(title.getproctitle())[:60]
    # `sys.orig_argv` still has the module of `-m`, which `sys.argv` loses while `runpy` starts.
    arguments = [argument for argument in sys.orig_argv[1:] if argument]
    if "-m" in arguments[:-1]:
        return f"-m {arguments[arguments.index('-m') + 1]}"
    if "-c" in arguments[:-1]:
        return f"-c {arguments[arguments.index('-c') + 1]}"[:60].replace("\n", " ")
    return os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
