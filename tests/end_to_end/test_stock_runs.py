"""Stock verl commands with real Ray and real vLLM on simulated cards, through the demo's own program. Long: minutes each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "demo"))

import main as demo  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def run(folder: Path, *arguments: str, **environment: str) -> tuple[subprocess.CompletedProcess, str, list[dict]]:
    """Run the demo; returns its result, the command's log and the metrics of each step."""
    algorithm = arguments[arguments.index("--algorithm") + 1] if "--algorithm" in arguments else "grpo"
    result = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "demo" / "main.py"), "--folder", str(folder), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=1400,
    )
    log = (folder / f"{algorithm}.log").read_text(errors="replace")
    return result, log, [step for line in log.splitlines() if (step := demo.read_step(line))]


def left_behind(folder: Path) -> list[str]:
    """Processes that name the run's folder in their command line, and segments and sockets of weight syncs."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if str(folder) in " ".join(process.info["cmdline"] or ()) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(f"process {process.pid}: {process.info['cmdline']}")
    return found + [str(path) for path in Path("/dev/shm").glob("xpu-shim*")]


def applied(folder: Path, algorithm: str) -> dict[str, set[str]]:
    """Patch id to the kinds of process in which it was applied; a patch that failed anywhere is an error."""
    found: dict[str, set[str]] = {}
    for report in json.loads((folder / f"{algorithm}.json").read_text()):
        for patch_id, record in report["patches"].items():
            assert record["state"] not in ("failed", "drifted"), (report["name"], patch_id, record["reason"])
            if record["state"] == "applied":
                found.setdefault(patch_id, set()).add(report["process"])
    return found


@pytest.mark.parametrize(("algorithm", "strategy"), [("grpo", "fsdp2"), ("ppo", "fsdp2"), ("ppo", "fsdp")])
def test_reinforcement_learning(algorithm, strategy, tmp_path):
    result, _, steps = run(tmp_path, "--algorithm", algorithm, "--strategy", strategy, "--steps", "2")
    assert result.returncode == 0, result.stderr[-3000:]
    assert [step["step"] for step in steps] == [1, 2]
    assert all(0 < step["actor/grad_norm"] < 1e3 for step in steps)
    patches = applied(tmp_path, algorithm)
    assert "worker" in patches["torch.process_group_reductions"]
    assert "rollout" not in patches["torch.process_group_reductions"]
    assert {"worker", "rollout"} <= patches["verl.weight_sync_sender"] | patches["verl.weight_sync_receiver"]
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("strategy", ["fsdp", "fsdp2"])
def test_supervised_fine_tuning(strategy, tmp_path):
    result, _, steps = run(tmp_path, "--algorithm", "sft", "--strategy", strategy)
    assert result.returncode == 0, result.stderr[-3000:]
    losses = [step["train/loss"] for step in steps]
    assert losses[-1] < losses[0]
    assert left_behind(tmp_path) == []


def test_the_stock_run_stops_without_the_shim(tmp_path):
    result, log, steps = run(tmp_path, "--without-shim")
    assert result.returncode == 0, result.stderr[-2000:]  # the demo expects it to stop
    assert steps == []
    assert "Total available GPUs 0 is less than total desired GPUs 2" in log


def test_the_reward_rises(tmp_path):
    """Learning, not only plumbing: from a random model's reward to mostly right answers."""
    result, _, steps = run(tmp_path, "--steps", "30")
    assert result.returncode == 0, result.stderr[-3000:]
    rewards = [step["critic/score/mean"] for step in steps]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.15, rewards
