"""The four markers as plain functions, for verl releases that ask the platform for them."""

from __future__ import annotations

from contextlib import contextmanager

from xpu_shim.profiling import markers, switch


def _no_range(message=None, color=None, domain=None, category=None):
    return None


def _no_end(range_id):
    return None


def _not_annotated(message=None, color=None, domain=None, category=None):
    return lambda func: func


@contextmanager
def _only_timed(name, timing_raw, color=None, domain=None, category=None):
    with markers.without_range(name, timing_raw):
        yield


mark_start_range = markers.start_range(_no_range)
mark_end_range = markers.end_range(_no_end)
mark_annotate = markers.annotate(_not_annotated)
marked_timer = markers.timer(_only_timed)

#: In the order of `PlatformBase.profiler_markers`: start, end, annotate, timer.
FUNCTIONS = (mark_start_range, mark_end_range, mark_annotate, marked_timer)

# The platform was asked, so this is an Intel one.
switch.is_intel()
