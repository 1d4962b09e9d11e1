"""`--probe`: real work on every device in child processes with time limits, and a collective over all of them."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from xpu_shim.doctor.check import ERROR, OK, SKIPPED, UNKNOWN, Check, Finding, Result, skipped
from xpu_shim.doctor.facts import ended, last_lines
from xpu_shim.doctor.machine import Machine, Ran
from xpu_shim.doctor.signatures import find

SCRIPT = os.path.join(os.path.dirname(__file__), "probe_child.py")

#: Seconds for one device: the first kernel of a process is compiled then.
DEVICE_LIMIT = 180.0
#: Seconds for the collective of all ranks.
COLLECTIVE_LIMIT = 240.0

_COUNT = "https://docs.pytorch.org/docs/stable/notes/get_start_xpu.html"


def _unused(machine: Machine) -> Finding:
    return skipped("")


DEVICE = Check(
    "torch.probe_device",
    "a device allocates, copies and multiplies, and the numbers are right",
    "Training on it fails the same way: `could not create a primitive`, `UR_RESULT_ERROR_DEVICE_LOST`, or a hang.",
    _COUNT,
    _unused,
)
COLLECTIVE = Check(
    "torch.probe_collective",
    "all devices together sum, broadcast and gather, and the numbers are right",
    "Training over several cards fails the same way, or hangs without an error.",
    "https://github.com/uxlfoundation/oneCCL/issues/215",
    _unused,
)


def run(
    machine: Machine, device_limit: float = DEVICE_LIMIT, collective_limit: float = COLLECTIVE_LIMIT
) -> list[Result]:
    """Probe every device torch counts, one after the other, then all together."""
    ran = machine.run([machine.python, SCRIPT, "count"], device_limit)
    answer = _last(ran)
    if "count" not in answer:
        return [Result(DEVICE, _failure("counting devices", ran, answer, device_limit))]
    count = answer["count"]
    if count == 0:
        return [
            Result(
                DEVICE, Finding(ERROR, "torch counts no xpu device", "xpu-shim doctor --group hardware --group torch")
            )
        ]
    results = []
    for index in range(count):
        ran = machine.run([machine.python, SCRIPT, "device", str(index)], device_limit)
        results.append(Result(DEVICE, _verdict(f"xpu:{index}", ran, device_limit)))
    if count == 1:
        results.append(Result(COLLECTIVE, Finding(SKIPPED, "one device")))
    elif all(result.finding.state == OK for result in results):
        results.append(Result(COLLECTIVE, _collective(machine, count, collective_limit)))
    else:
        results.append(Result(COLLECTIVE, Finding(UNKNOWN, "not tried: a device fails by itself")))
    return results


def _collective(machine: Machine, count: int, limit: float) -> Finding:
    port = _free_port()

    def rank(number: int) -> Ran:
        environ = {
            **machine.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(number),
            "WORLD_SIZE": str(count),
            "LOCAL_RANK": str(number),
            "LOCAL_WORLD_SIZE": str(count),
            "XPU_SHIM": "0",  # what the stack itself can do
        }
        return machine.run([machine.python, SCRIPT, "collective", str(number)], limit, environ)

    with ThreadPoolExecutor(max_workers=count) as pool:
        everyone = list(pool.map(rank, range(count)))
    for number, ran in enumerate(everyone):
        finding = _verdict(f"rank {number} of {count}", ran, limit)
        # A rank that crashed says more than the others, which wait for it until the limit.
        if finding.state != OK and ran.status is not None:
            return finding
    for number, ran in enumerate(everyone):
        finding = _verdict(f"rank {number} of {count}", ran, limit)
        if finding.state != OK:
            return finding
    return Finding(OK, f"{count} ranks: {_last(everyone[0]).get('detail', '')}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _last(ran: Ran) -> dict[str, Any]:
    answer: dict[str, Any] = {"stage": "start"}
    for line in ran.out.splitlines():
        if line.startswith('{"'):
            try:
                answer.update(json.loads(line))
            except ValueError:
                continue
    return answer


def _verdict(who: str, ran: Ran, limit: float) -> Finding:
    answer = _last(ran)
    if ran.status == 0 and answer["stage"] == "done":
        wrong: Sequence[str] = answer.get("wrong", ())
        if wrong:
            return Finding(
                ERROR,
                f"{who}: wrong numbers: {'; '.join(wrong)}",
                "sudo dmesg | grep -E 'xe|i915' | tail   # driver defect",
            )
        return Finding(OK, f"{who}: {answer.get('detail', '')}")
    return _failure(who, ran, answer, limit)


def _failure(who: str, ran: Ran, answer: dict[str, Any], limit: float) -> Finding:
    text = f"{who}, {answer['stage']}: {ended(ran.status, limit)}"
    message = last_lines(ran.err, 2)
    if message:
        text += f": {message}"
    if "No module named 'torch'" in ran.err:
        return Finding(UNKNOWN, f"{who}: torch is not installed for this interpreter")
    known = find(ran.err + ran.out)
    if known:
        return Finding(ERROR, f"{text} [{known[0].id}: {known[0].cause}]", known[0].cure)
    return Finding(ERROR, text, "sudo dmesg | grep -E 'xe|i915' | tail; CCL_LOG_LEVEL=info xpu-shim doctor --probe")
