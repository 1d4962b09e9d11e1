"""Each fault, shown on unmodified upstream code: with it the symptom of its public report, without it none."""

import pytest


@pytest.mark.parametrize(
    ("faults", "cases"),
    [
        ("masked_group_hang", "average_is_right extremes_are_right a_divide_factor_works unmasked_ranks_do_not_hang"),
        ("avg_double_divide,minmax_sum", "small_averages_are_divided_twice extremes_are_sums"),
        ("premul_refused", "a_divide_factor_is_refused"),
        ("hang:all_reduce:3", "a_hung_call_blocks_until_the_limit"),
        ("hang:any:1@1", "a_hang_of_one_rank_holds_up_the_others"),
    ],
)
def test_of_collectives(faults, cases, torchrun):
    outcome = torchrun("faulty.py", 2, *cases.split(), SIMXPU_FAULTS=faults, SIMXPU_HANG_LIMIT="3")
    passed = [line for line in outcome.out.splitlines() if line.startswith("CASE") and line.endswith("ok")]
    assert passed == [f"CASE {case} ok" for case in cases.split()], f"{outcome.out}\n{outcome.err[-6000:]}"


def test_masked_group_hang(torchrun):
    case = "masked_ranks_hang"
    outcome = torchrun("faulty.py", 2, "masked", case, SIMXPU_FAULTS="masked_group_hang", SIMXPU_HANG_LIMIT="3")
    assert f"CASE {case} ok" in outcome.out.splitlines(), f"{outcome.out}\n{outcome.err[-6000:]}"
    assert "comm_dev_uuids size 2 vs node_dev_uuids size 1" in outcome.err
    assert "narrow device affinity mask" in outcome.err


def test_no_splitting(torchrun):
    """pytorch#186548: a mesh over a group bound to a device needs splitting, which xccl does not have."""
    outcome = torchrun("bound_mesh.py", 4)
    assert outcome.code != 0
    assert "split" in outcome.err
    outcome = torchrun("bound_mesh.py", 4, SIMXPU_FAULTS="-no_splitting").check()
    assert outcome.out.split() == ["sum", "2.0"] * 4


SET_LATER = """
import os, torch
torch.xpu.is_available()
os.environ["ZE_AFFINITY_MASK"] = "2"
print(torch.xpu.device_count(), torch.xpu.get_device_properties(0).uuid)
"""


def test_mask_frozen_and_mask_ignored(python):
    set_before = "import torch; print(torch.xpu.device_count(), torch.xpu.get_device_properties(0).uuid)"
    everything = python(set_before).check().words
    second = python(set_before, ZE_AFFINITY_MASK="2").check().words
    assert (everything[0], second[0]) == ("4", "1")
    assert python(SET_LATER).check().words == everything  # torch-xpu-ops#2089: still device 0
    assert python(SET_LATER, SIMXPU_FAULTS="-mask_frozen").check().words == second
    assert python(set_before, ZE_AFFINITY_MASK="2", SIMXPU_FAULTS="mask_ignored").check().words == everything


MEMORY = """
import torch
x = torch.empty(1 << 30, dtype=torch.uint8, device="xpu")
try:
    print(*[n >> 30 for n in torch.xpu.mem_get_info()], *[n >> 30 for n in torch.accelerator.get_memory_info()])
except RuntimeError as error:
    print(error)
"""


def test_free_memory(python):
    assert python(MEMORY).check().words == ["23", "24", "23", "24"]
    assert python(MEMORY, SIMXPU_FAULTS="free_memory_zero").check().words == ["0", "24", "0", "24"]
    assert python(MEMORY, SIMXPU_FAULTS="free_memory_total").check().words == ["24", "24", "24", "24"]
    assert "doesn't support querying" in python(MEMORY, SIMXPU_FAULTS="free_memory_raises").check().out


VLLM = """
import torch
from types import SimpleNamespace
from vllm.utils.mem_utils import MemorySnapshot
from vllm.v1.worker.utils import request_memory
settings = SimpleNamespace(gpu_memory_utilization=0.5)
try:
    print("granted", request_memory(MemorySnapshot(device=torch.device("xpu:0")), settings) >> 30)
except ValueError as error:
    print(error)
"""


@pytest.mark.slow
def test_free_memory_in_vllm(python):
    """vllm#53990: an empty card is refused."""
    assert python(VLLM, timeout=300).check().out.strip().endswith("granted 12")
    outcome = python(VLLM, timeout=300, SIMXPU_FAULTS="free_memory_zero").check()
    assert "Free memory on device xpu:0 (0.0/24.0 GiB) on startup is less than desired" in outcome.out


def test_device_lost(python):
    code = """
import torch
x = torch.ones(2, device="xpu")
done = 0
try:
    for _ in range(100):
        x = x + 1
        done += 1
except RuntimeError as error:
    print(done < 100, error)
try:
    torch.xpu.synchronize()
except RuntimeError as error:
    print("again", error)
"""
    out = python(code, SIMXPU_FAULTS="device_lost:50").check().out
    assert out.count("UR_RESULT_ERROR_DEVICE_LOST") == 2
    assert out.startswith("True level_zero backend failed with error: 20")
    assert python(code, SIMXPU_FAULTS="device_lost:50@1", RANK="0").check().out == ""


def test_nan_fill_can_be_switched_off(python):
    code = "import torch; print(torch.empty(1 << 24, device='xpu').isnan().any().item())"
    assert python(code).check().words == ["True"]
    assert python(code, SIMXPU_FAULTS="-nan_fill").check().words == ["False"]  # fresh pages from the kernel: zeros


LATE = """
import torch
x = torch.arange(4.0, device="xpu")
ends = {
    "nothing": lambda: None,
    "synchronize": torch.xpu.synchronize,
    "stream": lambda: torch.xpu.current_stream().synchronize(),
    "blocking copy": lambda: torch.ones(1, device="xpu").cpu(),
    "item": lambda: x.sum().item(),
    "earlier event": lambda: before.synchronize(),
    "event": lambda: after.synchronize(),
}
for name, end in ends.items():
    before, after = torch.xpu.Event(), torch.xpu.Event()
    before.record()
    y = (x * 2).to("cpu", non_blocking=True)
    n = (x * 2).int().to("cpu", non_blocking=True)
    after.record()
    end()
    landed = y.tolist() == n.tolist() == [0, 2, 4, 6]
    print(name, "landed" if landed else "NaN" if y.isnan().all() else "?")
    torch.xpu.synchronize()
    assert y.tolist() == [0, 2, 4, 6]
"""


def test_late_copy(python):
    lines = python(LATE).check().out.strip().splitlines()
    assert all(line.endswith("landed") for line in lines)
    lines = python(LATE, SIMXPU_FAULTS="late_copy").check().out.strip().splitlines()
    missing = {"nothing", "earlier event"}
    for line in lines:
        name, _, state = line.rpartition(" ")
        assert state == ("NaN" if name in missing else "landed"), line


def test_late_copy_on_upstream_code(python):
    """What a caller of torch's own `.to(..., non_blocking=True)` in a state dict export meets."""
    code = """
import torch
from torch.distributed._state_dict_utils import _copy_state_dict
source = {"w": torch.ones(8, device="xpu")}
target = {"w": torch.zeros(8)}
_copy_state_dict(source, target, non_blocking=True)
print(target["w"].isnan().all().item())
torch.xpu.synchronize()
print(target["w"].tolist() == [1.0] * 8)
"""
    assert python(code, SIMXPU_FAULTS="late_copy").check().words == ["True", "True"]
    assert python(code).check().words == ["False", "True"]
