"""Files that go with the process that made them, in real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

PROGRAM = """
import os, sys, time
from xpu_shim.core.leftovers import leave_alone, remove_after_death
folder, how = sys.argv[1:]
def make(name):
    open(os.path.join(folder, name), "w").close()
    return os.path.join(folder, name)
for name in ("plain", "with space 'and quote", "-f"):
    remove_after_death(make(name))
make("kept")
if how == "shared names":
    for name in ("its  own *", "another's", "gone", "again"):
        remove_after_death(make(name), shared_name=True)
    remove_after_death(os.path.join(folder, "not there yet"), shared_name=True)
    make("not there yet")
    os.rename(make("new"), os.path.join(folder, "another's"))  # the other still exists, so its number is not given away
    leave_alone(os.path.join(folder, "gone"))
    leave_alone(os.path.join(folder, "again"))
    remove_after_death(os.path.join(folder, "again"), shared_name=True)
remove_after_death("relative")
remove_after_death(os.path.join(folder, "never made"))
if how == "forks":
    child = os.fork()
    if child == 0:
        name = os.path.join(folder, "child's")
        open(name, "w").close()
        remove_after_death(name)
        print(os.getpid(), flush=True)
        time.sleep(60)
print("ready", flush=True)
if how != "returns":
    time.sleep(60)
"""


def start(folder: Path, how: str, mark: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), how],
        env={**os.environ, "XPU_SHIM": "0", "LEFTOVERS_MARK": mark},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(condition) -> None:
    limit = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < limit, "not within 20 s"
        time.sleep(0.02)


def processes(mark: str) -> list[str]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        try:
            if process.environ().get("LEFTOVERS_MARK") == mark and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(str(process.info["cmdline"]))
        except psutil.Error:
            pass
    return found


@pytest.mark.parametrize("how", ["killed", "killed with its process group", "terminated", "returns"])
def test_files_go_with_the_process(how, tmp_path):
    mark = uuid.uuid4().hex
    process = start(tmp_path, how, mark)
    assert process.stdout.readline() == "ready\n"
    if how == "returns":
        assert process.wait(20) == 0
    else:
        # Alive, everything is there.
        assert sorted(os.listdir(tmp_path)) == ["-f", "kept", "plain", "with space 'and quote"]
        number = signal.SIGTERM if how == "terminated" else signal.SIGKILL
        (os.killpg if "group" in how else os.kill)(process.pid, number)
        process.wait(20)
    wait_for(lambda: os.listdir(tmp_path) == ["kept"])
    wait_for(lambda: processes(mark) == [])


def test_a_name_that_another_process_uses_too(tmp_path):
    process = start(tmp_path, "shared names", uuid.uuid4().hex)
    assert process.stdout.readline() == "ready\n"
    everything = {
        "kept",
        "plain",
        "with space 'and quote",
        "-f",
        "its  own *",
        "another's",
        "gone",
        "again",
        "not there yet",
    }
    assert set(os.listdir(tmp_path)) == everything
    process.kill()
    process.wait(20)
    left = {"kept", "another's", "gone", "not there yet"}
    wait_for(lambda: set(os.listdir(tmp_path)) == left)


def test_a_forked_child_keeps_its_own_and_not_its_parents(tmp_path):
    mark = uuid.uuid4().hex
    process = start(tmp_path, "forks", mark)
    lines = {process.stdout.readline().strip(), process.stdout.readline().strip()}
    (child,) = (int(line) for line in lines if line.isdigit())
    process.kill()
    process.wait(20)
    wait_for(lambda: sorted(os.listdir(tmp_path)) == ["child's", "kept"])
    os.kill(child, signal.SIGKILL)
    wait_for(lambda: os.listdir(tmp_path) == ["kept"])
    wait_for(lambda: processes(mark) == [])


def test_without_a_shell_nothing_fails(tmp_path, monkeypatch):
    from xpu_shim.core import leftovers

    def no_shell(*args, **kwargs):
        raise FileNotFoundError("/bin/sh")

    monkeypatch.setattr(leftovers, "_tried", False)
    monkeypatch.setattr(leftovers, "_pipe", -1)
    monkeypatch.setattr(subprocess, "Popen", no_shell)
    before = len(os.listdir("/proc/self/fd"))
    leftovers.remove_after_death(str(tmp_path / "file"))
    leftovers.remove_after_death(str(tmp_path / "other"))
    assert len(os.listdir("/proc/self/fd")) == before
