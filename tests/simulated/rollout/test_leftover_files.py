"""What a killed vLLM process leaves behind: its own sockets and ring buffers, with and without the patch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

PROGRAM = """
import json, time
import verl  # arms the shim
import zmq
from vllm.distributed.device_communicators.shm_broadcast import ShmRingBuffer
from vllm.distributed.device_communicators.shm_object_storage import SingleWriterShmRingBuffer
from vllm.utils.network_utils import get_open_zmq_ipc_path
from xpu_shim.core import ledger

address = get_open_zmq_ipc_path()
socket = zmq.Context.instance().socket(zmq.PULL)
socket.bind(address)
broadcast = ShmRingBuffer(1, 4096, 2)
storage = SingleWriterShmRingBuffer(4096, create=True)
reader = ShmRingBuffer(*broadcast.handle())
assert not reader.is_creator
paths = [address.removeprefix("ipc://"), *(f"/dev/shm/{one.shared_memory.name}" for one in (broadcast, storage))]
print(json.dumps({"paths": paths, "modules": len(ledger.record("vllm.leftover_files").modules)}), flush=True)
time.sleep(120)
"""


def run(folder: Path, shim: str) -> tuple[int, list[str]]:
    """Start the program and kill its process group: in how many modules the patch is, and what is left after 5 s."""
    environment = {**os.environ, "SIMXPU": "1", "SIMXPU_DEVICES": "1", "XPU_SHIM": shim, "TMPDIR": str(folder)}
    environment |= {"OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{environment.get('PYTHONPATH', '')}"
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        said = json.loads(process.stdout.readline())
        assert all(os.path.exists(path) for path in said["paths"])
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
    limit = time.monotonic() + 5
    while (left := [path for path in said["paths"] if os.path.exists(path)]) and time.monotonic() < limit:
        time.sleep(0.1)
    for path in left:
        os.unlink(path)
    return said["modules"], [path.removeprefix(str(folder)) for path in left]


@pytest.mark.parametrize("shim", ["0", "1"])
def test_a_killed_process_leaves_nothing(shim, tmp_path):
    modules, left = run(tmp_path, shim)
    if shim == "0":
        assert len(left) == 3  # the witness: stock leaves them all
    else:
        assert (modules, left) == (3, [])
