"""`xpu-shim doctor --probe` on simulated cards: real torch and torch.distributed in children, faults switched on."""

from __future__ import annotations

import os

import pytest

from xpu_shim.doctor import probe
from xpu_shim.doctor.check import ERROR, OK, UNKNOWN
from xpu_shim.doctor.machine import Machine

#: Seconds: generous, because children import torch while the machine is busy.
DEVICE, COLLECTIVE = 150.0, 60.0


def on_simulated_cards(devices="B60x2", faults="", collective=240.0):
    """Results of a probe on simulated cards with faults."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SIMXPU", "XPU_SHIM", "ZE_"))}
    environ.update(SIMXPU="1", SIMXPU_DEVICES=devices, SIMXPU_FAULTS=faults, OMP_NUM_THREADS="1")
    return probe.run(Machine(environ=environ), DEVICE, collective)


def test_two_sound_cards():
    first, second, together = on_simulated_cards()
    assert [item.finding.state for item in (first, second, together)] == [OK, OK, OK], together
    assert first.finding.evidence.startswith("xpu:0: allocation, copy and matmul are right; free memory moves")
    assert "2 ranks: sum, broadcast, gather, max and min are right" in together.finding.evidence


@pytest.mark.slow
def test_no_native_average_is_said_and_is_no_error():
    *_, together = on_simulated_cards(faults="avg_abort")
    assert together.finding.state == OK
    assert "no native averages" in together.finding.evidence
    assert "average operation is not supported for the scheduler path" in together.finding.evidence


@pytest.mark.slow
def test_a_collective_that_hangs_is_a_finding():
    *_, together = on_simulated_cards(faults="hang:all_reduce:2", collective=COLLECTIVE)
    assert together.finding.state == ERROR
    assert "all_reduce of 1048576 numbers: it did not end within 60 s" in together.finding.evidence


def test_a_card_that_is_lost_is_named():
    first, together = on_simulated_cards("B60x1", faults="device_lost:6")
    assert first.finding.state == ERROR
    assert "device_lost" in first.finding.evidence
    assert together.finding.state != OK


@pytest.mark.parametrize("fault", ["free_memory_total", "free_memory_zero"])
def test_a_driver_that_does_not_tell_free_memory(fault):
    first, _ = on_simulated_cards("B60x1", faults=fault)
    assert first.finding.state == OK
    assert "free memory is not told reliably" in first.finding.evidence


@pytest.mark.slow
def test_a_group_that_is_not_tried_is_not_fine():
    *_, together = on_simulated_cards(faults="device_lost:6")
    assert together.finding.state == UNKNOWN
