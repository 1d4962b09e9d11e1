"""A known fatal error that passes through a patched call says what it means and what to do; unpatched, it does not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

#: Ends with the traceback of what `act` raises, notes included.
PROGRAM = """
import traceback
import verl  # arms the hook
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
{setup}
try:
    {act}
except Exception:
    traceback.print_exc()
else:
    print("no error")
"""

GROUP = """
import tempfile
dist.init_process_group("cpu:gloo,xpu:xccl", init_method="file://" + tempfile.mktemp(), rank=0, world_size=1)
x = torch.ones(4, device="xpu")
"""

STAGE = """
from verl.utils.profiler import marked_timer

def act():
    with marked_timer("update_actor", {}):
        torch.empty(1 << 40, dtype=torch.uint8, device="xpu")
"""

#: (what is patched, faults, variables, setup, act, words of the error, words of the note)
CASES = {
    "ProcessGroup": (
        "avg_abort",
        {"XPU_SHIM_REDUCE_AVG": "native"},
        GROUP,
        "dist.all_reduce(x, dist.ReduceOp.AVG)",
        "average operation is not supported for the scheduler path",
        "oneCCL cannot average on its scheduler path",
    ),
    "functional collectives": (
        "avg_abort",
        {"XPU_SHIM_REDUCE_AVG": "native"},
        GROUP,
        "funcol.all_reduce(x, 'avg', dist.group.WORLD).wait()",
        "average operation is not supported for the scheduler path",
        "oneCCL cannot average on its scheduler path",
    ),
    "a lost device": (
        "device_lost:12",
        {},
        GROUP,
        "[dist.all_reduce(x, dist.ReduceOp.AVG) for _ in range(40)]",
        "UR_RESULT_ERROR_DEVICE_LOST",
        "dmesg",
    ),
    "a stage of the trainer": (
        "",
        {},
        STAGE,
        "act()",
        "XPU out of memory. Tried to allocate 1024.00 GiB",
        "The card is full",
    ),
    # Not a known error: it passes as it is.
    "init_process_group": (
        "",
        {},
        "import tempfile\nfrom datetime import timedelta",
        "dist.init_process_group('xpu:xccl', init_method='file://' + tempfile.mktemp(), rank=0, world_size=2, "
        "timeout=timedelta(seconds=3))",
        "Wait timeout",
        "",
    ),
}


def last_words(case: str, **variables: str) -> str:
    faults, more, setup, act, _, _ = CASES[case]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("XPU_SHIM", "SIMXPU", "ZE_"))}
    environment |= {
        "SIMXPU": "1",
        "SIMXPU_DEVICES": "B60x1",
        "SIMXPU_FAULTS": faults,
        "XPU_SHIM": "1",
        **more,
        **variables,
    }
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(setup=setup, act=act)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    return result.stdout + result.stderr


@pytest.mark.parametrize("case", CASES)
def test_the_note_is_in_the_traceback(case):
    *_, error, note = CASES[case]
    text = last_words(case)
    assert error in text
    assert text.count("xpu-shim: ") == (3 if note else 0)
    assert note in text


@pytest.mark.parametrize("case", ["ProcessGroup", "functional collectives", "a stage of the trainer"])
def test_without_the_shim_there_is_only_the_error(case):
    text = last_words(case, XPU_SHIM="0")
    assert CASES[case][4] in text
    assert "xpu-shim: " not in text
