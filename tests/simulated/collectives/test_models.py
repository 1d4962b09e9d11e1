"""Gradients under FSDP2, HSDP, replicate, FSDP1 and DDP, on 4 simulated ranks."""

from __future__ import annotations

import pytest

ABORT = "average operation is not supported for the scheduler path"
REFUSED = "PREMUL_SUM"

#: Case to what unpatched torch does: an error text, or whether its numbers are right.
CASES: dict[str, str | bool] = {
    "fsdp2": ABORT,
    "fsdp2_bf16": ABORT,
    "fsdp2_mixed": ABORT,
    "fsdp2_cpu_offload": ABORT,
    "fsdp2_factor": REFUSED,
    "hsdp": ABORT,
    "hsdp_factor": REFUSED,
    "hsdp_shard_of_one": ABORT,
    "hsdp_one_replica": ABORT,
    "hsdp_accumulated": ABORT,
    "replicate": ABORT,
    "ddp_with_averaging_hook": ABORT,
    "clip_grad_norm_2": ABORT,
    "clip_grad_norm_inf": ABORT,
    "checkpoint": ABORT,
    # torch's own switch divides twice by a factor where there is nothing to reduce-scatter.
    "hsdp_shard_of_one_forced": False,
    # These never average; they have to stay right.
    "fsdp2_fp16": True,
    "hsdp_shard_of_one_factor": True,
    "fsdp1": True,
    "ddp": True,
}
#: Relative to each gradient's largest number, for gradients that are not reduced in float32 throughout.
LOOSE = {"fsdp2_bf16": 2e-2, "fsdp2_mixed": 2e-2, "fsdp2_fp16": 2e-3}


@pytest.mark.parametrize("case", CASES)
def test_unpatched(reports, case):
    expected = CASES[case]
    for report in reports("models", 4):
        seen = report["models"][case]["off"]
        if isinstance(expected, str):
            assert expected in seen["error"]
        elif expected:
            assert right(case, seen), seen
        else:
            assert seen["difference"] > 0.1


@pytest.mark.parametrize("case", CASES)
def test_patched(reports, case):
    for report in reports("models", 4):
        seen = report["models"][case]["on"]
        assert "error" not in seen, seen
        assert right(case, seen), seen
        assert not [name for name in seen["counts"] if name.endswith((":avg", ":premul_sum"))]
        assert any(name.endswith(":sum") for name in seen["counts"])


def right(case: str, seen: dict) -> bool:
    """All within rtol = atol = 1e-6, and no gradient off by a factor that tolerance would hide."""
    if case in LOOSE:
        return seen["difference"] <= LOOSE[case]
    return seen["close"] and seen["difference"] <= 1e-4


def test_every_case_ran(reports):
    assert set(reports("models", 4)[0]["models"]) == set(CASES)
