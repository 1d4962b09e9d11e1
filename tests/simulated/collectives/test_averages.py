"""No average reaches the simulated backend, whatever route it takes, and the numbers are those of gloo."""

from __future__ import annotations

import pytest
from reduction_routes import ROUTES

ABORT = "average operation is not supported for the scheduler path"
#: Largest difference relative to a tensor's largest number.
TOLERANCE = {"float32": 1e-6, "bfloat16": 2e-2, "float16": 2e-3, "int64": 0.0}
#: Ranks and the run that has them.
RUN = {2: "averages", 4: "models"}


@pytest.mark.parametrize("ranks", RUN)
@pytest.mark.parametrize("route", ROUTES)
class TestRoute:
    def test_unpatched_it_aborts(self, reports, route, ranks):
        for report in reports(RUN[ranks], ranks):
            row = report["routes"][route]
            assert ABORT in row["off"]
            assert any(name.endswith(":avg") for name in row["off_counts"])

    def test_patched_it_averages(self, reports, route, ranks):
        for report in reports(RUN[ranks], ranks):
            cases = report["routes"][route]["cases"]
            assert len(cases) == len(ROUTES[route].cases())
            for case, seen in cases.items():
                assert "error" not in seen, (case, seen)
                assert seen["difference"] <= TOLERANCE[case.split()[0]], (case, seen)

    def test_no_average_below_c10d(self, reports, route, ranks):
        reductions: set[str] = set()
        for report in reports(RUN[ranks], ranks):
            for seen in report["routes"][route]["cases"].values():
                reductions |= set(seen["counts"])
        # It did go through the simulated backend, and only as sums.
        assert reductions
        assert all(name.endswith(":sum") for name in reductions), reductions


def test_removed_it_aborts_again(reports):
    for report in reports("averages", 2):
        assert ABORT in report["routes"]["removed"]["off"]


def test_the_table_is_a_table():
    assert len(ROUTES) >= 25
    assert sum(len(route.cases()) for route in ROUTES.values()) >= 150
