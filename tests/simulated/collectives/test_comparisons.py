"""MIN, MAX and PRODUCT on a simulated stack that returns the sum for MIN and MAX."""

from __future__ import annotations

import pytest
from reduction_routes import ROUTES

COMPARED = [name for name, route in ROUTES.items() if route.compares]
#: Ranks and the run that has them.
RUN = {2: "miscomputed", 4: "miscomputed_wide"}
TOLERANCE = {"float32": 1e-6, "bfloat16": 2e-2, "int64": 0.0}


@pytest.mark.parametrize("ranks", RUN)
@pytest.mark.parametrize("route", COMPARED)
class TestRoute:
    def test_unpatched_it_is_the_sum(self, reports, route, ranks):
        for op in ("min", "max"):
            rows = [report["compares"][route][op]["off"] for report in reports(RUN[ranks], ranks)]
            assert not any("error" in row for row in rows), rows
            wrong = max(row["difference"] for row in rows)
            # The sum of one is its maximum, too.
            assert wrong == 0 if route == "group_of_one" else wrong > 0.01

    @pytest.mark.parametrize("op", ["min", "max", "product"])
    def test_patched_it_is_right(self, reports, route, ranks, op):
        for report in reports(RUN[ranks], ranks):
            for dtype, seen in report["compares"][route][op]["on"].items():
                assert "error" not in seen, (dtype, seen)
                assert seen["difference"] <= TOLERANCE[dtype], (dtype, seen)


@pytest.mark.parametrize("ranks", RUN)
class TestGroups:
    def test_the_verdict_is_kept(self, reports, ranks):
        for report in reports(RUN[ranks], ranks):
            seen = report["small_groups"]
            assert seen["with_cpu_half"] == [ranks, ranks]
            assert seen["again"] == ranks
            assert seen["again_counts"] == {}  # nothing on the device: gloo does it

    def test_without_cpu_half_it_says_what_to_do(self, reports, ranks):
        for report in reports(RUN[ranks], ranks):
            seen = report["small_groups"]
            for name in ("without_cpu_half", "functional_without_cpu_half", "block_without_cpu_half"):
                assert seen[name].startswith("NoCpuHalfError")
                assert "ReduceOp.MAX gives wrong results on xpu" in seen[name]
                assert "cpu:gloo,xpu:xccl" in seen[name]
            assert seen["sum_without_cpu_half"] == [ranks, ranks]

    def test_groups_of_some_of_the_ranks(self, reports, ranks):
        for rank, report in enumerate(reports(RUN[ranks], ranks)):
            seen = report["small_groups"]
            assert seen["part_of_the_ranks"] == 2
            # The maximum of a pair (a, b) is b + 1.
            assert seen["pairs"] == [1.0] * (ranks - 1), rank

    def test_warned_once(self, reports, ranks):
        for report in reports(RUN[ranks], ranks):
            warnings = report["small_groups"]["warnings"]
            assert [text.startswith("ReduceOp.MAX gives wrong results on xpu") for text in warnings] == [True]
