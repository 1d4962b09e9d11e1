"""The demo's commands name nothing that a CUDA user would not write."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"demo_{name}", ROOT / "scripts" / "demo" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


commands = load("commands")


@pytest.mark.parametrize("algorithm", sorted(commands.ALGORITHMS))
def test_no_override_is_for_intel(algorithm):
    for argument in commands.ALGORITHMS[algorithm](Path("/folder"), 2, 3):
        words = set(re.split(r"[^a-z_]+", argument.lower())) - {"folder"}
        assert not words & set(commands.FORBIDDEN), argument


@pytest.mark.parametrize("script", ["run_grpo.sh", "run_ppo.sh", "run_sft.sh"])
def test_nor_in_the_scripts_for_real_cards(script):
    text = (ROOT / "scripts" / script).read_text()
    overrides = [line for line in text.splitlines() if not line.startswith("#")]
    words = set(re.split(r"[^a-z_]+", " ".join(overrides).lower()))
    assert not words & set(commands.FORBIDDEN)


def test_the_reward_is_less_for_each_digit_off_and_none_for_anything_else():
    score = load("reward").compute_score
    texts = {"7": 1.0, " 7 ": 1.0, "75": 1.0, "6": 0.8, "9": 0.6, "2": 0.0, "0": 0.0, "+": 0.0, "": 0.0, "²": 0.0}
    assert {text: score("", text, "7") for text in texts} == pytest.approx(texts)
