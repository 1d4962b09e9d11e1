"""The kernel's CPU list format."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpu_shim.devices.numa import parse_cpu_list


def test_examples():
    assert parse_cpu_list("0-3,8,10-11") == {0, 1, 2, 3, 8, 10, 11}
    assert parse_cpu_list("") == set()
    assert parse_cpu_list("5") == {5}


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 8)), max_size=6))
def test_any_list_of_ranges(ranges):
    text = ",".join(f"{first}-{first + more}" if more else str(first) for first, more in ranges)
    assert parse_cpu_list(text) == {cpu for first, more in ranges for cpu in range(first, first + more + 1)}


@pytest.mark.parametrize("text", ["a", "1-", "-1", "1-b"])
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match="not a number or a range"):
        parse_cpu_list(text)
