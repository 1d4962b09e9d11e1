"""The shim's own logger: stderr, warnings only unless `XPU_SHIM_LOG` asks for more. stdout belongs to the program."""

from __future__ import annotations

import logging
import os

LEVELS = {"": logging.WARNING, "warning": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}

_warned: set[str] = set()


def logger(name: str = "xpu_shim") -> logging.Logger:
    """A logger under "xpu_shim", configured at first use in this process."""
    root = logging.getLogger("xpu_shim")
    if not root.handlers:
        wanted = os.environ.get("XPU_SHIM_LOG", "").lower()
        handler = logging.StreamHandler()  # stderr as it is now
        handler.setFormatter(logging.Formatter("xpu-shim[%(process)d] %(levelname)s: %(message)s"))
        root.addHandler(handler)
        root.setLevel(LEVELS.get(wanted, logging.WARNING))
        root.propagate = False  # verl and vLLM configure the root logger; a line must not appear twice
        if wanted not in LEVELS:
            warn_once(
                f"XPU_SHIM_LOG={wanted!r} is not known; allowed are info and debug. Continuing with warnings only."
            )
    return logging.getLogger(name)


def warn_once(message: str) -> None:
    """Log a warning unless the same text was logged in this process before."""
    if message not in _warned:
        _warned.add(message)
        logger().warning(message)
