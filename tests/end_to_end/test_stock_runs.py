"""Stock verl commands with real Ray and real vLLM on simulated cards, through the demo's own program. Long: minutes each."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from statistics import mean

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "demo"))

import commands  # noqa: E402
import main as demo  # noqa: E402
import task  # noqa: E402

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


@pytest.mark.parametrize(
    ("algorithm", "strategy"),
    [("grpo", "fsdp2"), ("ppo", "fsdp"), pytest.param("ppo", "fsdp2", marks=pytest.mark.exhaustive)],
)
def test_reinforcement_learning(algorithm, strategy, tmp_path, monkeypatch):
    monkeypatch.setenv("SIMXPU_TRIPWIRE", str(tmp_path / "first_use"))
    result, _, steps = run(tmp_path, "--algorithm", algorithm, "--strategy", strategy, "--steps", "2")
    assert result.returncode == 0, result.stderr[-3000:]
    assert [step["step"] for step in steps] == [1, 2]
    assert all(0 < step["actor/grad_norm"] < 1e3 for step in steps)
    patches = applied(tmp_path, algorithm)
    assert "worker" in patches["torch.process_group_reductions"]
    assert "rollout" not in patches["torch.process_group_reductions"]
    assert {"worker", "rollout"} <= patches["verl.weight_sync_sender"] | patches["verl.weight_sync_receiver"]
    assert "rollout" in patches["vllm.memory_snapshot"] & patches["vllm.request_memory"]
    # Of some thirty processes only those that compute on a card opened one: ranks when pinned, engines behind their mask.
    uses = [json.loads(line) for line in (tmp_path / "first_use").read_text().splitlines()]
    ranks = [use for use in uses if any("devices/pinning.py" in frame for frame in use["stack"])]
    engines = [use["mask"] for use in uses if any("init_device" in frame for frame in use["stack"])]
    assert (len(uses), len(ranks), sorted(engines)) == (4, 2, ["0", "1"])
    assert "trainer and rollout weights equal: yes" in result.stderr
    assert len(syncs(tmp_path, algorithm)) == len(set(syncs(tmp_path, algorithm))) == 3  # before the first step too
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


@pytest.mark.exhaustive
def test_an_average_stops_the_run_without_its_cure(tmp_path):
    """Everything else of the shim is on: only so does the run get as far as the fault."""
    result, log, steps = run(tmp_path, "--without-cure", "avg_abort", "--steps", "1")
    assert result.returncode != 0
    assert steps == []
    assert "average operation is not supported for the scheduler path" in log
    assert "first error" in result.stderr


@pytest.mark.exhaustive
def test_a_false_out_of_memory_stops_the_run_without_its_cure(tmp_path):
    result, log, steps = run(tmp_path, "--without-cure", "free_memory_zero", "--steps", "1")
    assert result.returncode != 0
    assert steps == []
    assert "Free memory on device xpu:0 (0.0/" in log
    assert "on startup is less than desired GPU memory utilization" in log


@pytest.mark.exhaustive
def test_two_cards_for_one_rollout(tmp_path):
    """Tensor parallelism in vLLM beside two training ranks."""
    result, _, steps = run(tmp_path, "--steps", "2", "--", "actor_rollout_ref.rollout.tensor_model_parallel_size=2")
    assert result.returncode == 0, result.stderr[-3000:]
    assert [step["step"] for step in steps] == [1, 2]
    applied(tmp_path, "grpo")


@pytest.mark.exhaustive
def test_resumes_from_the_checkpoint(tmp_path):
    """`trainer.resume_mode=auto` is the default: the second run goes on where the first stopped, with equal weights."""
    first, _, steps = run(tmp_path, "--steps", "2", "--", "trainer.save_freq=1")
    assert first.returncode == 0, first.stderr[-3000:]
    assert [step["step"] for step in steps] == [1, 2]
    saved, last = checkpoint(tmp_path / "checkpoints", 2), syncs(tmp_path)[-1]
    second, log, steps = run(tmp_path, "--steps", "3", "--", "trainer.save_freq=1")
    assert second.returncode == 0, second.stderr[-3000:]
    assert [step["step"] for step in steps] == [3]
    assert "Found checkpoint" in log
    assert "trainer and rollout weights equal: yes" in second.stderr
    # What the second run gave to its rollout before it trained is what the first one had at its end.
    assert syncs(tmp_path)[0] == last
    assert syncs(tmp_path)[-1] != last
    assert saved == checkpoint(tmp_path / "checkpoints", 2)  # resuming did not write into what it read
    assert saved != checkpoint(tmp_path / "checkpoints", 3)


def syncs(folder: Path, algorithm: str = "grpo") -> list[str]:
    """A checksum over all weights for each sync, in order, as the trainer's ranks sent them; the ranks agree."""
    reports = json.loads((folder / f"{algorithm}.json").read_text())
    ranks = [report["notes"]["weight_sync_sender"] for report in reports if "weight_sync_sender" in report["notes"]]
    digests = [[sync["digest"] for sync in rank] for rank in ranks]
    assert digests
    assert all(other == digests[0] for other in digests)
    return digests[0]


def checkpoint(folder: Path, step: int) -> dict[str, float]:
    """Name and rank of each parameter shard in an actor's checkpoint to the sum of its elements in float64."""
    import torch

    sums = {}
    for file in sorted((folder / f"global_step_{step}" / "actor").glob("model_world_size_*_rank_*.pt")):
        for name, tensor in torch.load(file, weights_only=False, map_location="cpu").items():
            tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            sums[f"{file.stem}:{name}"] = tensor.double().sum().item()
    assert sums
    return sums


def start_stock(folder: Path, mark: str, *overrides: str) -> subprocess.Popen:
    """The stock command itself, not under the demo's care."""
    task.make_model(folder / "model")
    task.make_data(folder / "data")
    options = argparse.Namespace(folder=folder, cards=2, faults=None, without_cure=None, without_shim=False)
    with (folder / "grpo.log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, *commands.grpo(folder, 2, 200), *overrides],
            env={**demo.environment(options), "RUN_MARK": mark},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def alive(mark: str) -> list[str]:
    """Live processes of the run: those that inherited its mark."""
    found = []
    for process in psutil.process_iter(["pid", "status", "cmdline"]):
        with contextlib.suppress(psutil.Error):
            if process.environ().get("RUN_MARK") == mark and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid}: {' '.join(process.info['cmdline'] or ())[:120]}")
    return found


def shared_files() -> set[str]:
    """Segments in /dev/shm and sockets in the temporary folder, whoever made them; not the simulated cards' accounts."""
    segments = {path for path in Path("/dev/shm").iterdir() if not path.name.startswith("simxpu-")}
    sockets = set()
    for path in Path(tempfile.gettempdir()).iterdir():
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(path.stat().st_mode):
                sockets.add(path)
    return {str(path) for path in segments | sockets}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("number", "overrides"),
    [
        pytest.param(signal.SIGINT, (), id="SIGINT"),
        # With tensor parallelism vLLM has ring buffers in /dev/shm too.
        pytest.param(signal.SIGKILL, ("actor_rollout_ref.rollout.tensor_model_parallel_size=2",), id="SIGKILL"),
    ],
)
def test_a_killed_driver_leaves_nothing(number, overrides, tmp_path):
    """After `ray stop`, as its documentation asks for, no process, segment or socket of the run is left."""
    mark, before = uuid.uuid4().hex, shared_files()
    driver = start_stock(tmp_path, mark, *overrides)
    try:
        log, limit = tmp_path / "grpo.log", time.monotonic() + 600
        while "step:1 - " not in demo.ANSI.sub("", log.read_text(errors="replace")):
            assert driver.poll() is None, log.read_text(errors="replace")[-3000:]
            assert time.monotonic() < limit, "no training step within 600 s"
            time.sleep(1)
        assert shared_files() - before  # vLLM's sockets, for one: there is something to leave
        os.kill(driver.pid, number)
        driver.wait(90)
        subprocess.run([sys.executable, "-m", "ray.scripts.scripts", "stop"], check=True, timeout=120)
        limit = time.monotonic() + 30
        while alive(mark) and time.monotonic() < limit:
            time.sleep(1)
        assert alive(mark) == []
        assert shared_files() - before == set()  # those of vLLM are removed by a shell, which `alive` has waited for
    finally:
        for line in alive(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line.split(":")[0]), signal.SIGKILL)


#: What verl needs to run the same command on plain CPU with gloo, beside `cpu_platform`: no device has memory to sleep
#: out of, no flash attention, no triton, one GPU resource a rank.
ON_CPU = (
    "trainer.device=cpu",
    "+ray_kwargs.ray_init.num_gpus=2",
    "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    "+actor_rollout_ref.rollout.enable_sleep_mode=False",
    "actor_rollout_ref.actor.use_torch_compile=False",
)


def run_on_cpu(folder: Path, steps: int, *overrides: str) -> list[dict]:
    """The GRPO command on plain CPU, with the shim off and no simulated device; returns the metrics of each step."""
    task.make_model(folder / "model")
    task.make_data(folder / "data")
    options = argparse.Namespace(folder=folder, cards=2, faults="", without_cure=None, without_shim=True)
    environment = {
        **demo.environment(options),
        "SIMXPU": "0",
        "SIMXPU_VLLM": "1",
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "cpu_platform",
        "PYTHONPATH": str(ROOT / "tests" / "simulated" / "devices"),
    }
    result = subprocess.run(
        [sys.executable, *commands.grpo(folder, 2, steps), *ON_CPU, *overrides],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1600,
    )
    assert result.returncode == 0, result.stdout[-5000:]
    return [step for line in result.stdout.splitlines() if (step := demo.read_step(line))]


@pytest.mark.exhaustive
@pytest.mark.timeout(3200)
def test_the_reward_rises_as_on_the_cpu(tmp_path):
    """Learning, not only plumbing: from a random model's reward to mostly right answers, here and on plain CPU.

    vLLM's batches depend on the time at which requests come, so two runs of one seed sample differently; what is compared
    is how well both do at the end.
    """
    fsdp2 = "actor_rollout_ref.actor.strategy=fsdp2"
    result, _, steps = run(tmp_path / "xpu", "--steps", "30", "--strategy", "fsdp2")
    assert result.returncode == 0, result.stderr[-3000:]
    curves = []
    for metrics in (steps, run_on_cpu(tmp_path / "cpu", 30, fsdp2)):
        rewards = [step["critic/score/mean"] for step in metrics]
        assert len(rewards) == 30
        curves.append(rewards)
        assert mean(rewards[-5:]) > mean(rewards[:5]) + 0.15, rewards
    assert abs(mean(curves[0][-5:]) - mean(curves[1][-5:])) < 0.15, curves
    # Before the first update both are the same model.
    assert abs(curves[0][0] - curves[1][0]) < 0.15, curves
