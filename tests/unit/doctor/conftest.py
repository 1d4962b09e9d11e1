"""Machines for the tests of the doctor."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def tree(tmp_path):
    """A healthy machine with two Arc Pro B60."""
    import machines

    return machines.healthy(tmp_path / "machine")


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    """The order of cards is asked from the real environment; no setting of the developer may change a test."""
    for name in ("ZE_ENABLE_PCI_ID_DEVICE_ORDER", "XPU_SHIM_SYSFS"):
        monkeypatch.delenv(name, raising=False)
