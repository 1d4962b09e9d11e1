"""Starts the ranks once per combination of faults and number of ranks, and hands out what they reported."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import start_ranks

#: Sections, and the faults of the simulated stack they are run with.
RUNS = {
    "averages": (("routes", "edges"), "avg_abort,premul_refused"),
    "models": (("routes", "models"), "avg_abort,premul_refused"),
    "miscomputed": (("small_groups", "compares", "verl"), "minmax_sum,avg_double_divide"),
    "miscomputed_wide": (("small_groups", "compares"), "minmax_sum,avg_double_divide"),
}


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], list[dict[str, Any]]]:
    """`reports(run, ranks)`: the reports of all ranks of one of `RUNS`, started at first use."""

    @functools.cache
    def start(name: str, ranks: int) -> list[dict[str, Any]]:
        sections, faults = RUNS[name]
        folder = tmp_path_factory.mktemp(f"{name}-{ranks}")
        return start_ranks.run(sections, ranks, folder, SIMXPU_FAULTS=faults, SIMXPU_NUM_DEVICES="4")

    return start
