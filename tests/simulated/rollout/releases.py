"""The vLLM releases tests run against."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def releases() -> dict[str, str]:
    """Name to directory: the installed vLLM, and unpacked ones (`$XPU_SHIM_RELEASES/vllm-0.24.0/vllm/…`)."""
    found = {"installed": ""}
    folder = os.environ.get("XPU_SHIM_RELEASES")
    for path in sorted(Path(folder).glob("vllm-*")) if folder else ():
        found[path.name] = str(path)
    return found


def parameters() -> list:
    """One pytest parameter a release; unpacked ones belong to the longer tier."""
    return [pytest.param(name, marks=() if name == "installed" else pytest.mark.slow) for name in releases()]
