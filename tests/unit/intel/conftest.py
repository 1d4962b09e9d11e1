"""A sysfs tree with the cards a test asks for."""

from __future__ import annotations

import pytest
from sysfs_tree import Tree


@pytest.fixture
def sysfs(tmp_path, monkeypatch):
    """An empty sysfs tree that the shim reads."""
    tree = Tree(tmp_path)
    monkeypatch.setenv("XPU_SHIM_SYSFS", str(tree.root))
    monkeypatch.delenv("ZE_ENABLE_PCI_ID_DEVICE_ORDER", raising=False)
    return tree
