"""What a table of routes does not show, on 2 simulated ranks."""

from __future__ import annotations

import pytest

#: Ways to learn that a collective is done.
WAYS = (
    "waited",
    "result",
    "polled",
    "future",
    "future_then_wait",
    "wait_then_future",
    "threads",
    "other_stream",
    "boxed",
)
#: Check to what every rank sees.
EXPECTED = {
    "half_precision_without_overflow": [60000.0] * 5,
    # Sums over two ranks of 1x and 2x: -9, 9, 21.
    "integers_truncate": [-4, 4, 10],
    # 4 * 0.5 + 8 * 0.25
    "premultiplied": [4.0] * 6,
    "failed_call_leaves_the_tensor": ["refused True", True, 6.0, 10.0],
    "backend_called_directly": [1.5, 1.5, 2.0, False],
    "functional_with_reduce_op_objects": [6.0] * 6 + ["max", "max", "max", "sum", "premul_sum"],
    "methods_pickle": True,
    "autograd_does_not_notice": {"leaf": 3.0, "version": 0, "inference": 3.0, "grad": None},
    "sums_keep_their_work": {"sum": True, "average": True, "cpu": True, "cpu_maximum": True},
    "finishing_work": {
        "type": "FinishingWork",
        "is_work": True,
        "success": True,
        **{way: [3, 6] for way in WAYS},
    },
    "failing_work": {"wait": True, "again": True, "future": True, "ran": 0},
    # Five dtypes and the verdict, then the call itself; after that the call alone.
    "asked_once_per_group": [
        {"all_reduce:max": 6, "all_reduce:sum": 1},
        {"all_reduce:max": 1},
        {"all_reduce:max": 1},
        {"all_reduce:max": 6, "all_reduce:sum": 1},
    ],
    "not_asked_for_cpu_or_sums": {"all_reduce:sum": 1},
    "counting_modes_see_one": 1,
    "fake_tensors_start_nothing": {},
    "cpu_average_stays_average": {"AVG": 2},
}


@pytest.mark.parametrize("check", EXPECTED)
def test_check(reports, check):
    for report in reports("averages", 2):
        assert report["edges"][check] == {"value": EXPECTED[check]}


def test_unpatched_premultiplied_sums_are_refused(reports):
    for report in reports("averages", 2):
        assert "PREMUL_SUM" in report["edges"]["premultiplied_off"]["error"]


def test_it_retires_only_when_torch_sums_everywhere(reports):
    for report in reports("averages", 2):
        assert report["edges"]["retirement"]["value"] == {
            "stock": "in force",
            "summing": "torch sums on xpu by itself",
            "half": "in force",
        }


def test_dtypes_without_an_average_are_named(reports):
    for report in reports("averages", 2):
        answers = report["edges"]["refused_dtypes"]["value"]
        assert set(answers) == {"torch.bool", "torch.float8_e4m3fn"}
        for dtype, text in answers.items():
            assert text.startswith(f"ReduceOp.AVG is not defined for {dtype} tensors on xpu; convert to a ")


def test_wrong_arguments_get_torchs_own_error(reports):
    for report in reports("averages", 2):
        answers = report["edges"]["wrong_arguments_are_torch_errors"]["value"]
        assert len(answers) == 3
        assert all(text.startswith("allreduce(): incompatible function arguments") for text in answers)


class TestSetting:
    @pytest.mark.parametrize("value", ["sum", "SUM "])
    def test_sum(self, reports, value):
        for report in reports("averages", 2):
            assert report["edges"]["settings"][value] == {"average_reached": False, "fsdp2": "applied", "warnings": []}

    def test_native(self, reports):
        for report in reports("averages", 2):
            assert report["edges"]["settings"]["native"] == {
                "average_reached": True,
                "fsdp2": "skipped:XPU_SHIM_REDUCE_AVG=native",
                "warnings": [],
            }

    def test_anything_else_is_warned_about_and_means_sum(self, reports):
        for report in reports("averages", 2):
            seen = report["edges"]["settings"]["mean"]
            assert not seen["average_reached"]
            (warning,) = seen["warnings"]
            assert "XPU_SHIM_REDUCE_AVG='mean' is not known; allowed are sum" in warning
            assert "native" in warning
