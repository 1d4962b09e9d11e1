"""The message for a true shortage, and that its advice fits."""

from __future__ import annotations

import math
import os

from hypothesis import given
from hypothesis import strategies as st

from xpu_shim.rollout.holders import Holder
from xpu_shim.rollout.shortage import fitting_utilization, message

GIB = 1 << 30


@given(total=st.integers(GIB, 200 * GIB), part=st.floats(0, 1), elsewhere=st.integers(0, 64 * GIB))
def test_the_advice_fits_and_no_more_would(total: int, part: float, elsewhere: int) -> None:
    free = int(total * part)
    advice = fitting_utilization(free, total, elsewhere)
    assert 0 <= advice <= 1
    assert advice == 0 or math.ceil(total * advice) - elsewhere <= free
    if advice < 1:
        assert math.ceil(total * round(advice + 0.01, 2)) - elsewhere > free - total * 0.0001


def test_message() -> None:
    everybody = (Holder(41, "ray::WorkerDict", 15 * GIB), Holder(os.getpid(), "VLLM::Worker", GIB))
    text = message("xpu:0", 8 * GIB, 24 * GIB, 0.5, 0, GIB, everybody)
    for words in (
        "Free memory on device xpu:0 (8.00 GiB of 24.00 GiB) on startup is less than desired GPU memory utilization",
        "(0.5, 12.00 GiB): 4.00 GiB are missing",
        "This process holds 1.00 GiB, others hold 15.00 GiB: pid 41 (ray::WorkerDict) 15.00 GiB.",
        "Lower actor_rollout_ref.rollout.gpu_memory_utilization from 0.5 to 0.33",
    ):
        assert words in text
    assert "VLLM::Worker" not in text


def test_message_where_nothing_fits() -> None:
    text = message("xpu:0", 0, 24 * GIB, 0.5, 0, 0, None)
    assert "No actor_rollout_ref.rollout.gpu_memory_utilization fits" in text
    assert "others hold 24.00 GiB." in text
