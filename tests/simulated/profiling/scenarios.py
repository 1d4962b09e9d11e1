"""Run as a program: verl's markers, used as no profiler likes it. Each scenario has its own ITT log, <ITT_LOG>.<name>.

python scenarios.py OUTPUT
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from pathlib import Path

SCENARIOS = {}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


@scenario
def nested(p):
    timing = {}
    with p.marked_timer("a", timing):
        with p.marked_timer("b", timing):
            inner = p.mark_start_range("c")
            p.mark_end_range(inner)
        with p.marked_timer("b", timing):
            pass
    assert set(timing) == {"a", "b"}


@scenario
def raising(p):
    """A stage that raises: its range ends, its time is not recorded (upstream's contract), the error goes on."""
    timing = {}

    @p.mark_annotate("annotated")
    def fail():
        raise ArithmeticError

    try:
        with p.marked_timer("outer", timing):
            with p.marked_timer("inner", timing):
                fail()
    except ArithmeticError:
        assert timing == {}, timing
        return
    raise AssertionError("the error was swallowed")


@scenario
def out_of_order(p):
    first, second, third = (p.mark_start_range(name) for name in ("a", "b", "c"))
    p.mark_end_range(first)
    p.mark_end_range(third)
    p.mark_end_range(second)
    p.mark_end_range(second)


@scenario
def interleaved(p):
    """Two coroutines on one thread, each with a range over an await; the first to begin is the first to end."""

    @p.mark_annotate("coroutine")
    async def work(name, pause):
        timing = {}
        with p.marked_timer(name, timing):
            await asyncio.sleep(pause)
        assert timing[name] >= pause * 0.9, timing

    async def both():
        await asyncio.gather(work("a", 0.02), work("b", 0.06))

    asyncio.run(both())


@scenario
def many_threads(p):
    def work(number):
        for _ in range(20):
            with p.marked_timer(f"thread {number}", {}):
                opened = p.mark_start_range("inner")
                p.mark_end_range(opened)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)


@scenario
def ended_elsewhere(p):
    """A range that another thread ends, and one that nobody ends: both are over when their thread is."""
    begun, ended = [], threading.Event()

    def begin():
        begun.append(p.mark_start_range("handed over"))
        ended.wait(20)
        with p.marked_timer("after", {}):
            pass
        p.mark_start_range("forgotten")

    thread = threading.Thread(target=begin)
    thread.start()
    while not begun:
        ended.wait(0.01)
    p.mark_end_range(begun[0])
    ended.set()
    thread.join(20)


@scenario
def generator_in_range(p):
    """A range held open over a `yield` by a generator that is dropped half-way."""

    def numbers():
        with p.marked_timer("generator", {}):
            yield 1
            yield 2

    with p.marked_timer("consumer", {}):
        for _ in numbers():
            break


@scenario
def odd_names(p):
    for name in (None, "", 7, "ümlaut", "a b", "x" * 300):
        p.mark_end_range(p.mark_start_range(name))
    p.mark_end_range(None)


@scenario
def turned_off_inside(p):
    """A range that is open when profiling stops still ends; one begun after it is not sent."""
    from xpu_shim.profiling import switch

    switch.begin("again")
    switch.end("driver")
    outer = p.mark_start_range("outer")
    switch.end("again")
    assert not switch.on
    inner = p.mark_start_range("not sent")
    p.mark_end_range(outer)
    p.mark_end_range(inner)
    switch.begin("driver")


def main() -> None:
    import verl.utils.profiler as package
    from verl.utils.tracking import Tracking

    prefix, report = os.environ["ITT_LOG"], {}
    with package.marked_timer("before", {}):
        pass
    Tracking("project", "experiment", ["console"], {"global_profiler": {"steps": [1]}})
    for name, function in SCENARIOS.items():
        os.environ["ITT_LOG"] = f"{prefix}.{name}"
        try:
            function(package)
            report[name] = "ok"
        except Exception as error:
            report[name] = f"{type(error).__name__}: {error}"
    Path(sys.argv[1]).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
