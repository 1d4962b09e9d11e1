"""PPO's critic trains on two simulated devices from a config that names no attention implementation."""

from __future__ import annotations

import math

import pytest
from model_runs import report, run


@pytest.mark.parametrize("strategy", ["fsdp2", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_two_steps_on_two_ranks(checkpoints, tmp_path, strategy):
    answers = report("critic_rank.py", checkpoints / "plain", strategy, tmp_path, ranks=2)
    (loss, gradient, mfu), (loss_after, gradient_after, mfu_after) = answers["steps"]
    assert all(math.isfinite(value) and value > 0 for value in (loss, gradient, loss_after, gradient_after))
    assert loss_after < loss  # the same batch twice
    assert 0 < mfu < 1
    assert 0 < mfu_after < 1
    assert "Qwen2ForTokenClassification" in answers["class"] or strategy == "fsdp"
    assert answers["device"] == "xpu"
    assert answers["values"][0] == 27
    assert answers["between steps"] == {"moments": ["xpu"], "parameters": ["xpu"]}
    if strategy == "fsdp":
        assert answers["saved from"]["model"] == ["cpu"]
        off = {"XPU_SHIM": "1", "XPU_SHIM_DISABLE": "verl.checkpoint_offload"}
        stock = run("critic_rank.py", checkpoints / "plain", strategy, tmp_path / "stock", ranks=2, **off)
        assert '"model": ["xpu"]' in stock


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fsdp2", "fsdp"])
def test_offloaded_between_steps_it_trains_the_same(checkpoints, tmp_path, strategy):
    kept = report("critic_rank.py", checkpoints / "plain", strategy, tmp_path / "kept", ranks=2)
    moved = report("critic_rank.py", checkpoints / "plain", strategy, tmp_path / "moved", "offload", ranks=2)
    assert moved["between steps"] == {"moments": ["cpu"], "parameters": ["cpu"]}
    for before, after in zip(kept["steps"], moved["steps"], strict=True):
        assert after[:2] == pytest.approx(before[:2], rel=1e-6)  # loss and gradient norm
