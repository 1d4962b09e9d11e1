"""What goes wrong in a weight sync, inside whole verl runs with real Ray and real vLLM on simulated cards. Minutes each.

The same failures between two bare processes are in `tests/weights`. A plugin (`injected/weight_sync_fault.py`) makes them
happen in the rollout's workers or in training rank 0 during the second sync; nothing of xpu-shim or verl is replaced.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts" / "demo"), str(ROOT / "tests" / "weights")]

import commands  # noqa: E402
import main as demo  # noqa: E402
import private_mounts  # noqa: E402
import task  # noqa: E402

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1200)]

#: Seconds a run may take until the fault, and the bound for its end after it: much more than it needs, for a busy machine.
START, END = 900, 90


@dataclass
class Ended:
    """A run that is over."""

    status: int
    #: Seconds from the fault to the end of the driver; None if the run ended without one.
    seconds: float | None
    log: str
    #: What each rollout worker and training rank saw, by process id.
    seen: dict[int, dict]
    reports: list[dict]
    #: Processes, segments and sockets that were left.
    left: list[str]


def run(
    folder: Path,
    fault: str,
    *overrides: str,
    disabled: str = "",
    shm: int = 0,
    intermediate: int | None = None,
    end: float = END,
) -> Ended:
    """A GRPO run of two steps (three syncs) with a fault in the second sync.

    Args:
        folder: for everything it writes.
        fault: see `weight_sync_fault`.
        overrides: more of the command.
        disabled: patches that are off.
        shm: MiB of its /dev/shm, in a private mount namespace; Ray takes the temporary folder then.
        intermediate: rows of the model's larger tensors, if not the demo's.
        end: seconds after the fault in which the driver must end; else it is killed and the status is None.
    """
    make_model(folder / "model", intermediate)
    task.make_data(folder / "data")
    seen, mark = folder / "seen", uuid.uuid4().hex
    seen.mkdir()
    options = argparse.Namespace(folder=folder, cards=2, faults=None, without_cure=None, without_shim=False)
    environment = demo.environment(options) | {
        "RUN_MARK": mark,
        "INJECTED_FAULT": fault,
        "INJECTED_FAULT_FOLDER": str(seen),
        "VERL_USE_EXTERNAL_MODULES": "weight_sync_fault",
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(ROOT / "tests" / "end_to_end" / "injected"), os.environ.get("PYTHONPATH")])
        ),
        "XPU_SHIM_LOG": "info",
        "XPU_SHIM_REPORT_DIR": str(folder / "reports"),
        "XPU_SHIM_DISABLE": disabled,
    }
    (folder / "reports").mkdir()
    command = [sys.executable, *commands.grpo(folder, 2, 2), *overrides]
    if shm:
        environment["XPU_SHIM_WEIGHT_SYNC_BACKEND"] = "shm"
        mount = f'mount -t tmpfs -o size={shm}m tmpfs /dev/shm && exec "$@"'
        command = [
            *(private_mounts.prefix() or pytest.fail("no private mount namespace")),
            "sh",
            "-c",
            mount,
            "sh",
            *command,
        ]
    path = folder / "grpo.log"
    with path.open("w") as log:
        driver = subprocess.Popen(
            command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    started = time.time()
    try:
        status, seconds = follow(driver, seen, end)
        limit = time.monotonic() + 30
        while status is not None and alive(mark) and time.monotonic() < limit:
            time.sleep(0.5)
        left = alive(mark)
    finally:
        for pid in alive(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid.split(":")[0]), signal.SIGKILL)
        driver.wait(30)
    reports = [json.loads(file.read_text()) for file in (folder / "reports").glob("*.json")]
    pids = {report["pid"] for report in reports}
    sockets = [str(file) for file in Path("/tmp").glob("rl-colocate-zmq-*") if dead_since(file, started)]
    segments = [name for name in os.listdir("/dev/shm") if name.startswith("xpu-shim") and mine(name, pids)]
    return Ended(
        status,
        seconds,
        demo.ANSI.sub("", path.read_text(errors="replace")),
        {int(file.stem): json.loads(file.read_text()) for file in seen.glob("*.json")},
        reports,
        left + sorted(sockets) + segments,
    )


def dead_since(file: Path, moment: float) -> bool:
    """Whether a socket file was made after `moment` and nobody listens at it (another run on this host may)."""
    with contextlib.suppress(FileNotFoundError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return file.stat().st_mtime >= moment and probe.connect_ex(str(file)) == errno.ECONNREFUSED
    return False


def mine(name: str, pids: set[int]) -> bool:
    return any(part.isdigit() and int(part) in pids for part in name.split("-"))


def follow(driver: subprocess.Popen, seen: Path, end: float) -> tuple[int | None, float | None]:
    """Wait for the end of the run: its status (None if it did not end), and the seconds it took after the fault."""
    limit, fault = time.monotonic() + START, None
    while driver.poll() is None:
        if fault is None:
            times = [json.loads(file.read_text()).get("fault") for file in seen.glob("*.json")]
            fault = min((moment for moment in times if moment), default=None)
        if fault is not None and time.time() - fault > end:
            return None, None
        if time.monotonic() > limit:
            return None, None
        time.sleep(0.1)
    now = time.time()
    times = [json.loads(file.read_text()).get("fault") for file in seen.glob("*.json")]
    fault = min((moment for moment in times if moment), default=None)
    return driver.returncode, None if fault is None else now - fault


def make_model(folder: Path, intermediate: int | None) -> None:
    task.make_model(folder)
    if intermediate is None:
        return
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config.from_pretrained(folder)
    config.intermediate_size = intermediate
    Qwen2ForCausalLM(config).save_pretrained(folder)


def alive(mark: str) -> list[str]:
    """Live processes of the run: those that inherited its mark."""
    found = []
    for process in psutil.process_iter(["pid", "status", "cmdline"]):
        with contextlib.suppress(psutil.Error):
            if process.environ().get("RUN_MARK") == mark and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid}: {' '.join(process.info['cmdline'] or ())[:120]}")
    return found


def test_a_loader_that_raises_ends_the_run_with_its_error(tmp_path):
    """In a /dev/shm of 16 MiB, in which the first sync goes well with a bucket of 64 MB."""
    ended = run(tmp_path, "raise", bucket(64), shm=16)
    assert ended.status not in (0, None), ended.log[-3000:]
    assert re.search(r"PeerFailed: weight sync failed in the receiver \(pid \d+\) at tensor", ended.log)
    assert "ValueError: shape mismatch, injected into the second sync" in ended.log
    assert "Bus error" not in ended.log
    assert "SIGBUS" not in ended.log
    assert "KiB taken" in ended.log  # the warning of the short /dev/shm
    assert all(seen.get("syncs") == 1 for seen in ended.seen.values())
    assert "tensors equal at both ends" in ended.log
    assert ended.left == []
    print(f"ended {ended.seconds:.1f} s after the fault")


def test_a_rollout_that_is_killed_ends_the_run(tmp_path):
    ended = run(tmp_path, "kill", bucket(64))
    assert ended.status not in (0, None), ended.log[-3000:]
    killed = [pid for pid, seen in ended.seen.items() if "fault" in seen]
    assert killed
    assert any(f"receiver (pid {pid}) died" in ended.log for pid in killed), ended.log[-3000:]
    assert ended.left == []
    print(f"ended {ended.seconds:.1f} s after the fault")


def test_a_rollout_killed_between_two_syncs_ends_the_run(tmp_path):
    """Nobody comes to the second sync, and nothing that could close is open."""
    ended = run(tmp_path, "gone", bucket(64))
    assert ended.status not in (0, None), ended.log[-3000:]
    ranks = [seen for seen in ended.seen.values() if "rank" in seen]
    assert [rank["syncs"] for rank in ranks] == [1, 1]  # noted by itself at the end of the first
    errors = [rank["error"] for rank in ranks if "error" in rank]
    assert errors
    for error in errors:
        assert re.match(r"PeerFailed: .*EngineDeadError|PeerDied: .*\(pid \d+\) died, and no other has come", error), (
            errors
        )
    assert ended.left == []
    print(f"ended {ended.seconds:.1f} s after the fault")


def test_a_worker_that_fails_before_it_connects_ends_the_run_with_its_error(tmp_path):
    ended = run(tmp_path, "early", bucket(64))
    assert ended.status not in (0, None), ended.log[-3000:]
    assert re.search(r"PeerFailed: weight sync failed in the receiver \(pid \d+\)", ended.log), ended.log[-3000:]
    assert "RuntimeError: model not ready, injected before the second sync" in ended.log
    assert ended.left == []
    print(f"ended {ended.seconds:.1f} s after the fault")


def test_a_rollout_that_exits_after_its_last_answer_ends_the_run(tmp_path):
    """The sync itself has succeeded: no answer is lost, and what fails is the next thing asked of the engine."""
    ended = run(tmp_path, "leaves", bucket(64))
    assert ended.status not in (0, None), ended.log[-3000:]
    left = [seen for seen in ended.seen.values() if "fault" in seen]
    assert len(left) == 2
    assert all(seen["equal"] for seen in left)
    ranks = [seen for seen in ended.seen.values() if "rank" in seen]
    assert [rank["syncs"] for rank in ranks] == [2, 2]
    assert "EngineDeadError" in ended.log
    assert ended.left == []
    print(f"ended {ended.seconds:.1f} s after the fault")


@pytest.mark.parametrize("fault", ["source_raises", "source_killed"])
def test_a_training_rank_that_fails_or_dies_ends_the_run_and_its_receiver(fault, tmp_path):
    ended = run(tmp_path, fault, bucket(64))
    assert ended.status not in (0, None), ended.log[-3000:]
    (pid,) = [pid for pid, seen in ended.seen.items() if seen.get("rank") == "0" and "fault" in seen]
    if fault == "source_raises":
        cause = "OSError: a shard could not be read, injected into the second sync"
        assert f"PeerFailed: weight sync failed in the sender (pid {pid})" in ended.log
    else:
        cause = f"sender (pid {pid}) died"
        assert "ActorDiedError" in ended.log
    assert cause in ended.log
    receivers = [seen for seen in ended.seen.values() if "error" in seen and "rank" not in seen]
    assert any(cause in seen["error"] for seen in receivers), receivers
    assert all(seen["ended"] - ended.seen[pid]["fault"] < 30 for seen in receivers)
    assert ended.left == []
    print(f"ended {ended.seconds:.1f} s after the fault")


def test_tensors_larger_than_the_bucket_kept_tensors_and_a_second_receiver(tmp_path):
    """What stock verl answers with an AssertionError, a BufferError and a KeyError: the run goes on, weights equal."""
    ended = run(tmp_path, "odd", bucket(1), intermediate=4608)  # up_proj: 4608 x 128 of bfloat16, more than 1 MiB
    assert ended.status == 0, ended.log[-3000:]
    assert "step:2 - " in ended.log
    assert len(ended.seen) == 2
    for seen in ended.seen.values():
        assert seen["syncs"] == 3
        assert seen["calls"] > 1
        assert seen["second"].startswith("PeerRefused")
        assert seen["kept"] > 20
        assert seen["changed"] == []
    received = [sync for report in ended.reports for sync in report.get("notes", {}).get("weight_sync_receiver", [])]
    sent = [sync for report in ended.reports for sync in report.get("notes", {}).get("weight_sync_sender", [])]
    assert len(received) == len(sent) == 6
    assert {sync["digest"] for sync in received} == {sync["digest"] for sync in sent}
    assert all(sync["equal_to_sender"] and sync["equal_in_model"] == sync["tensors"] for sync in received)
    assert ended.left == []


def test_stock_verl_hangs_when_the_loader_raises(tmp_path):
    """The same failure with the two patches off and all others on: without them the run would not get that far."""
    ended = run(tmp_path, "raise", disabled="verl.weight_sync_sender,verl.weight_sync_receiver", end=60)
    assert any("fault" in seen for seen in ended.seen.values())
    assert ended.status is None
    assert "PeerFailed" not in ended.log
    for file in ended.left:  # stock verl leaves its socket files
        if file.endswith(".sock"):
            Path(file).unlink(missing_ok=True)


def bucket(megabytes: int) -> str:
    return f"actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes={megabytes}"
