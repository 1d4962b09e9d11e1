"""Four ranks on four simulated cards. Each worker runs once; its cases are reported as tests of their own."""

import re
from pathlib import Path

import pytest

WORKERS = Path(__file__).parent / "workers"
#: Environment of each worker.
ENVIRONMENT = {"collectives": {}, "sharding": {"SIMXPU_FAULTS": "avg_abort"}}
_outcomes = {}


def names(worker: str) -> list[str]:
    return re.findall(r"^@case\ndef (\w+)", (WORKERS / f"{worker}.py").read_text(), re.M)


@pytest.mark.parametrize(("worker", "name"), [(w, n) for w in ENVIRONMENT for n in names(w)])
def test_case(worker, name, torchrun):
    if worker not in _outcomes:
        _outcomes[worker] = torchrun(f"{worker}.py", 4, timeout=400, **ENVIRONMENT[worker])
    outcome = _outcomes[worker]
    assert f"CASE {name} ok" in outcome.out.splitlines(), f"{outcome.out[-2000:]}\n{outcome.err[-6000:]}"
