"""Ranges against a model of ITT: one stack a thread, whose end always ends the innermost."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpu_shim.profiling.ranges import Ranges


class Stacks:
    """What a collector sees: begun and ended ranges of each thread."""

    def __init__(self) -> None:
        self.open: dict[int, list[str]] = {}
        self.begun = self.ended = 0

    def push(self, name: str) -> None:
        self.open.setdefault(threading.get_ident(), []).append(name)
        self.begun += 1

    def pop(self) -> None:
        self.open[threading.get_ident()].pop()  # raises if this thread has none
        self.ended += 1

    def here(self) -> list[str]:
        return self.open.get(threading.get_ident(), [])


@pytest.fixture
def stacks():
    return Stacks()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9))))
def test_any_order_of_begin_and_end_is_balanced(steps):
    """After each step, the collector has open exactly what was begun and not ended, in the order it was begun."""
    stacks = Stacks()
    ranges = Ranges(stacks.push, stacks.pop)
    wanted = []
    for number, (begin, which) in enumerate(steps):
        if begin:
            wanted.append(ranges.begin(f"r{number}"))
        elif wanted:
            ranges.end(wanted.pop(which % len(wanted)))
        assert stacks.here() == [opened.name for opened in wanted] == ranges.open_here()
    for opened in wanted:
        ranges.end(opened)
    assert stacks.here() == []
    assert stacks.begun == stacks.ended


def test_ending_twice_does_nothing(stacks):
    ranges = Ranges(stacks.push, stacks.pop)
    outer, inner = ranges.begin("outer"), ranges.begin("inner")
    ranges.end(inner)
    ranges.end(inner)
    assert stacks.here() == ["outer"]
    ranges.end(outer)
    assert stacks.here() == []


def test_a_range_ended_by_another_thread_is_ended_by_its_own(stacks):
    ranges = Ranges(stacks.push, stacks.pop)
    opened = ranges.begin("handed over")
    thread = threading.Thread(target=ranges.end, args=(opened,))
    thread.start()
    thread.join(10)
    assert stacks.here() == ["handed over"]
    ranges.begin("next")
    assert stacks.here() == ["next"]


def test_one_ended_elsewhere_below_an_open_one_ends_with_it(stacks):
    ranges = Ranges(stacks.push, stacks.pop)
    below, above = ranges.begin("below"), ranges.begin("above")
    thread = threading.Thread(target=ranges.end, args=(below,))
    thread.start()
    thread.join(10)
    ranges.end(above)
    assert stacks.here() == []


def test_a_thread_ends_what_it_left_open(stacks):
    ranges = Ranges(stacks.push, stacks.pop)
    kept = []
    thread = threading.Thread(target=lambda: kept.append(ranges.begin("forgotten")))
    thread.start()
    thread.join(10)
    assert (stacks.begun, stacks.ended) == (1, 1)
    ranges.end(kept[0])  # long over
    assert (stacks.begun, stacks.ended) == (1, 1)


def test_names_are_made_text(stacks):
    ranges = Ranges(stacks.push, stacks.pop)
    ranges.begin(7)
    assert stacks.here() == ["7"]
