"""Which readings of device memory are believed, and what is taken instead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpu_shim.rollout.memory import (
    ARITHMETIC,
    MOVEMENT,
    SLACK,
    Known,
    NoMemoryReadingError,
    Reading,
    judge,
    read,
)

GIB = 1 << 30
CARD = 24 * GIB


def says(free: float, total: float = 24.0):
    return lambda: (int(free * GIB), int(total * GIB))


def fails(text: str):
    def source():
        raise RuntimeError(text)

    return source


@pytest.mark.parametrize(
    ("free", "total", "known", "words"),
    [
        (10 * GIB, CARD, Known(0, CARD), None),
        (10 * GIB, 0, Known(0, CARD), "total 0.00 GiB"),
        (25 * GIB, CARD, Known(0, CARD), "free 25.00 GiB of 24.00 GiB"),
        (-1, CARD, Known(0, CARD), "free -0.00 GiB"),
        (0, CARD, Known(0, CARD), "free 0 of 24.00 GiB although this process holds 0.00 GiB"),
        (0, CARD, Known(23 * GIB, CARD), "free 0"),
        (0, CARD, Known(CARD, CARD), None),
        (0, CARD, Known(0, CARD, held=CARD - SLACK), None),
        (0, CARD, Known(0, CARD, held=2 * GIB), "all processes hold 2.00 GiB"),
        (CARD, CARD, Known(0, CARD), None),
        (CARD, CARD, Known(3 * GIB, CARD), "although this process holds 3.00 GiB"),
        (22 * GIB, CARD, Known(3 * GIB, CARD), "although this process holds 3.00 GiB"),
        (5 * GIB, 8 * GIB, Known(0, CARD), "but the device has 24.00 GiB"),
        (20 * GIB, int(22.7 * GIB), Known(0, CARD), None),
        (8 * GIB, 23 * GIB, Known(0, CARD, before=Reading(9 * GIB, CARD, "a")), "total changed"),
        (9 * GIB, CARD, Known(2 * GIB, CARD, before=Reading(9 * GIB, CARD, "a")), "free stayed at 9.00 GiB"),
        (9 * GIB, CARD, Known(0, CARD, None, Reading(9 * GIB, CARD, "a"), 2 * GIB), "released 2.00 GiB"),
        (9 * GIB, CARD, Known(MOVEMENT - 1, CARD, before=Reading(9 * GIB, CARD, "a")), None),
    ],
)
def test_judge(free: int, total: int, known: Known, words: str | None) -> None:
    reason = judge(free, total, known)
    assert reason is None if words is None else words in reason


def test_another_source_may_have_another_total() -> None:
    known = Known(0, CARD, before=Reading(9 * GIB, CARD, "a"))
    assert judge(8 * GIB, 23 * GIB, known, same_source=False) is None


def test_the_first_source_that_can_be_right_answers() -> None:
    reading = read([("op", says(0)), ("torch", says(20))], Known(0, CARD))
    assert (reading.free, reading.source) == (20 * GIB, "torch")
    assert reading.rejected == ("op: free 0 of 24.00 GiB although this process holds 0.00 GiB",)


def test_a_raise_is_a_reason() -> None:
    reading = read([("op", fails("not supported\nlong text")), ("torch", says(20))], Known(0, CARD))
    assert reading.rejected == ("op: RuntimeError: not supported",)


def test_all_free_with_allocations_is_capped() -> None:
    reading = read([("torch", says(24))], Known(3 * GIB, CARD))
    assert (reading.free, reading.source) == (21 * GIB, ARITHMETIC)


def test_a_constant_reading_is_replaced_by_what_was_allocated_since() -> None:
    known = Known(5 * GIB, CARD, None, Reading(18 * GIB, CARD, "torch"), 1 * GIB)
    reading = read([("torch", says(18))], known)
    assert (reading.free, reading.total) == (14 * GIB, CARD)


def test_the_kernel_knows_what_others_hold() -> None:
    reading = read([("torch", fails("no"))], Known(1 * GIB, CARD, held=9 * GIB))
    assert reading.free == 15 * GIB


@pytest.mark.parametrize(("room", "free"), [(True, CARD), (False, 0)])
def test_where_all_say_zero_an_allocation_decides(room: bool, free: int) -> None:
    asked = []
    reading = read([("op", says(0)), ("torch", says(0))], Known(0, CARD), lambda size: not asked.append(size) and room)
    assert reading.free == free
    assert asked == [MOVEMENT]


def test_nothing_is_allocated_where_a_reading_is_believed() -> None:
    read([("torch", says(2))], Known(0, CARD), lambda size: pytest.fail("allocated"))


def test_no_answer_at_all() -> None:
    with pytest.raises(NoMemoryReadingError, match="op: RuntimeError: lost"):
        read([("op", fails("lost"))], Known(0, 0))


sizes = st.integers(0, 48 * GIB)


@given(free=sizes, total=sizes, reserved=st.integers(0, CARD), held=st.none() | sizes, before=st.none() | sizes)
def test_an_answer_is_always_possible(free, total, reserved, held, before) -> None:
    known = Known(reserved, CARD, held, None if before is None else Reading(min(before, CARD), CARD, "a"), 0)
    reading = read([("a", lambda: (free, total))], known)
    assert 0 <= reading.free <= reading.total
    assert abs(reading.total - CARD) <= CARD / 8
    assert reading.free + reserved <= reading.total + SLACK


@given(free=st.integers(SLACK, CARD), reserved=st.integers(0, CARD))
def test_a_true_reading_is_never_rejected(free: int, reserved: int) -> None:
    if free + reserved <= CARD:
        assert read([("a", lambda: (free, CARD))], Known(reserved, CARD)) == Reading(free, CARD, "a")
