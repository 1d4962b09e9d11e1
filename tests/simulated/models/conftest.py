"""Checkpoints that the programs of this folder load."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_models


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tiny checkpoints: Qwen2 "plain", two whose config.json names an attention, one of each family."""
    folder = tmp_path_factory.mktemp("checkpoints")
    small_models.write(folder / "plain")
    for family in ("Qwen2", "Qwen3", "Llama"):
        small_models.write(folder / family, family)
    small_models.write(folder / "names_eager", attn_implementation="eager")
    small_models.write(folder / "names_flash", attn_implementation="flash_attention_2")
    return folder
