"""Processes on one card share its memory."""

import signal
import subprocess
import sys

import pytest

HOLD = """
import sys, torch
x = torch.empty(int(sys.argv[2]) << 20, dtype=torch.uint8, device=sys.argv[1])
print("holding", flush=True)
sys.stdin.readline()
"""
TRY = """
import sys, torch
free, total = torch.xpu.mem_get_info(int(sys.argv[1].split(":")[1]))
try:
    torch.empty(int(sys.argv[2]) << 20, dtype=torch.uint8, device=sys.argv[1]); print("fits", free >> 20, total >> 20)
except torch.OutOfMemoryError as error:
    print("refused", free >> 20, total >> 20); print(error, file=sys.stderr)
"""


@pytest.fixture
def machine(tmp_path, environment):
    """A simulated machine of two 100 MiB cards; starts processes on it."""
    env = environment | {"SIMXPU_DEVICES": "B60x2@100MiB", "SIMXPU_SHARED_DIR": str(tmp_path)}
    children = []

    def start(code, *arguments, **more):
        child = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            env=env | more,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.wait(30)


def outcome(child) -> tuple[list[str], str]:
    out, err = child.communicate(timeout=90)
    return out.split(), err


def test_colocated_processes_compete(machine):
    holder = machine(HOLD, "xpu:0", 60)
    assert holder.stdout.readline() == "holding\n"
    words, error = outcome(machine(TRY, "xpu:0", 60))
    assert words == ["refused", "40", "100"]
    assert "XPU out of memory. Tried to allocate 60.00 MiB" in error
    assert "of which 40.00 MiB is free" in error
    assert outcome(machine(TRY, "xpu:0", 30))[0] == ["fits", "40", "100"]
    assert outcome(machine(TRY, "xpu:1", 60))[0] == ["fits", "100", "100"]  # the other card is empty
    # the card is the same whatever index a mask gives it
    assert outcome(machine(TRY, "xpu:0", 60, ZE_AFFINITY_MASK="1"))[0] == ["fits", "100", "100"]
    holder.communicate("\n", timeout=60)
    assert outcome(machine(TRY, "xpu:0", 60))[0] == ["fits", "100", "100"]


def test_a_killed_process_gives_its_memory_back(machine):
    holder = machine(HOLD, "xpu:0", 90)
    assert holder.stdout.readline() == "holding\n"
    holder.send_signal(signal.SIGKILL)
    holder.wait(30)
    assert outcome(machine(TRY, "xpu:0", 90))[0] == ["fits", "100", "100"]


def test_a_cache_is_charged_until_it_is_emptied(machine):
    code = """
import torch
x = torch.empty(50 << 20, dtype=torch.uint8, device="xpu")
del x
print(torch.xpu.mem_get_info()[0] >> 20, torch.xpu.memory_reserved() >> 20)
torch.xpu.empty_cache()
print(torch.xpu.mem_get_info()[0] >> 20, torch.xpu.memory_reserved() >> 20)
"""
    assert outcome(machine(code))[0] == ["50", "50", "100", "0"]


def test_a_card_of_two_tiles_is_charged_by_tile(machine):
    tiles = {"SIMXPU_DEVICES": "Max1550@100MiB"}
    holder = machine(HOLD, "xpu:1", 80, **tiles)
    assert holder.stdout.readline() == "holding\n"
    assert outcome(machine(TRY, "xpu:0", 80, **tiles))[0] == ["fits", "100", "100"]
    # seen as one device, the allocation is spread over both tiles, and one of them is nearly full
    composite = tiles | {"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}
    assert outcome(machine(TRY, "xpu:0", 80, **composite))[0] == ["refused", "120", "200"]
    assert outcome(machine(TRY, "xpu:0", 30, **composite))[0] == ["fits", "120", "200"]


def test_another_machine_is_another_card(machine):
    holder = machine(HOLD, "xpu:0", 90)
    assert holder.stdout.readline() == "holding\n"
    assert outcome(machine(TRY, "xpu:0", 90, SIMXPU_MACHINE="elsewhere"))[0] == ["fits", "100", "100"]
