"""What verl's markers cost on Intel GPUs, beside stock's generic ones, in one run; no collector is loaded.

    SIMXPU=1 XPU_SHIM=1 python tests/benchmarks/markers.py

Prints microseconds for each (best of several rounds: the machine is shared) and the ratio to stock. "off" is a process
that profiles nothing, "on" one that does; "native" is the backend's own begin and end, below which no marker can be. A
marker is a `mark_start_range` with its `mark_end_range`; a timer is a whole `with marked_timer`.
"""

from __future__ import annotations

import os
import sys
import timeit
from pathlib import Path

ROUNDS, NUMBER = 15, 20_000


def microseconds(function) -> float:
    """Best time of one call."""
    return min(timeit.repeat(function, number=NUMBER, repeat=ROUNDS)) / NUMBER * 1e6


def main() -> None:
    os.environ.pop("INTEL_LIBITTNOTIFY64", None)
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import verl.utils.profiler as package

    from xpu_shim.profiling import itt, switch

    ours = {name: getattr(package, name) for name in ("mark_start_range", "mark_end_range", "marked_timer")}
    stock = {name: function.__wrapped__ for name, function in ours.items()}  # AttributeError: the shim is not active
    timing: dict[str, float] = {}

    def marker(functions):
        start, end = functions["mark_start_range"], functions["mark_end_range"]
        return lambda: end(start("stage"))

    def timer(functions):
        timed = functions["marked_timer"]

        def block():
            with timed("stage", timing):
                pass

        return block

    switch.is_intel()
    rows = []
    for state in ("off", "on"):
        if state == "on":
            switch.begin("benchmark")
        for what, make in (("marker", marker), ("timer", timer)):
            before, with_shim = microseconds(make(stock)), microseconds(make(ours))
            rows.append((what, state, before, with_shim, with_shim - before, with_shim / before))
    print(f"backend {itt.backend().name}, {ROUNDS} rounds of {NUMBER}")
    print(f"{'':8}{'':5}{'stock us':>10}{'ours us':>10}{'more us':>10}{'ratio':>8}")
    push, pop = itt.backend().push, itt.backend().pop
    print(f"{'native':8}{'':15}{microseconds(lambda: (push('stage'), pop())):10.3f}")
    for what, state, before, with_shim, more, ratio in rows:
        print(f"{what:8}{state:5}{before:10.3f}{with_shim:10.3f}{more:10.3f}{ratio:8.2f}")


if __name__ == "__main__":
    main()
