"""verl's four marker functions on Intel GPUs, made from upstream's.

Each asks first whether this process sends ranges, then whether that is settled; only the first call in a process goes
on to ask verl for its device. Where that is not xpu, upstream's own function does the work, with upstream's own ids.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import contextmanager
from functools import cache

from xpu_shim.profiling import switch
from xpu_shim.profiling.ranges import Range


def start_range(original):
    """`mark_start_range`: begins an ITT range on this thread and returns it, or None while markers are off."""

    def mark_start_range(message=None, color=None, domain=None, category=None):
        if switch.on:
            return switch.start_range(message or "")
        if switch.ours or switch.is_intel():
            return switch.start_range(message or "") if switch.on else None
        return original(message=message, color=color, domain=domain, category=category)

    return mark_start_range


def end_range(original):
    """`mark_end_range`: ends a range, in any order and on any thread; None and one that has ended are ignored."""

    def mark_end_range(range_id):
        if type(range_id) is Range:
            switch.end_range(range_id)
        elif range_id is not None and not switch.ours and not switch.is_intel():
            return original(range_id)
        return None

    return mark_end_range


def annotate(original):
    """`mark_annotate`: each call of the function is a range, also of a coroutine function, also when it raises."""

    def mark_annotate(message=None, color=None, domain=None, category=None):
        def decorator(func):
            # The device is not asked for here: decorators run at import time.
            theirs = []  # type: ignore[var-annotated]

            def foreign():
                if not theirs:
                    theirs.append(original(message=message, color=color, domain=domain, category=category)(func))
                return theirs[0]

            return annotated(func, message or getattr(func, "__name__", "?"), foreign)

        return decorator

    return mark_annotate


def annotated(func, name: str, foreign):
    """`func` inside a range called `name`; `foreign()` is upstream's version of it for other platforms."""
    if inspect.iscoroutinefunction(func):

        @functools.wraps(func)
        async def call(*args, **kwargs):
            if not (switch.ours or switch.is_intel()):
                return await foreign()(*args, **kwargs)
            if not switch.on:
                return await func(*args, **kwargs)
            opened = switch.start_range(name)
            try:
                return await func(*args, **kwargs)
            finally:
                switch.end_range(opened)

        return call

    @functools.wraps(func)  # type: ignore[no-redef]
    def call(*args, **kwargs):
        if not (switch.ours or switch.is_intel()):
            return foreign()(*args, **kwargs)
        if not switch.on:
            return func(*args, **kwargs)
        opened = switch.start_range(name)
        try:
            return func(*args, **kwargs)
        finally:
            switch.end_range(opened)

    return call


def timer(original):
    """`marked_timer`: times the block as upstream does (nothing is recorded for one that raises), inside a range."""

    # Upstream's generic one is a timer without markers.
    plain = original if original.__module__ == "verl.utils.profiler.performance" else without_range

    def marked_timer(name, timing_raw, color=None, domain=None, category=None):
        if switch.on:
            return timed(name, timing_raw)
        if switch.ours or switch.is_intel():
            return timed(name, timing_raw) if switch.on else explained(plain(name, timing_raw))
        return original(name, timing_raw, color, domain, category)

    return marked_timer


def without_range(name, timing_raw):
    """Upstream's timer without markers."""
    from verl.utils.profiler.performance import simple_timer

    return simple_timer(name, timing_raw)


@contextmanager
def explained(timer):
    """A timer whose block's known fatal errors carry a note: what a Ray worker died of passes here in the driver."""
    try:
        with timer as value:
            yield value
    except Exception as error:
        from xpu_shim.doctor.explain import explain

        explain(error)
        raise


@cache
def upstream_timer():
    """The generator that upstream's own marker modules build their timers from."""
    from verl.utils.profiler.performance import _timer

    return _timer


@contextmanager
def timed(name, timing_raw):
    """Upstream's timer inside a range."""
    opened = switch.start_range(name)
    try:
        yield from upstream_timer()(name, timing_raw)
    except Exception as error:
        from xpu_shim.doctor.explain import explain

        explain(error)
        raise
    finally:
        switch.end_range(opened)
