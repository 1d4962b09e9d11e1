"""The table of routes with AVG: what unpatched torch does, then every case against gloo, then unpatched torch again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from context import counted, describe, difference, patched
from reduction_routes import ROUTES, Case, Route

if TYPE_CHECKING:
    from context import Context


def rows(c: Context) -> dict[str, Any]:
    """Route to `off` (the outcome without patches), `off_counts`, and `cases`."""
    routes = {name: route for name, route in ROUTES.items() if c.ranks >= route.ranks}
    report: dict[str, Any] = {name: {**witness(c, route), "cases": {}} for name, route in routes.items()}
    expected = {
        (name, case): reference(c, route, Case(*case)) for name, route in routes.items() for case in route.cases()
    }
    with patched():
        for (name, case), result in expected.items():
            report[name]["cases"][label(*case)] = outcome(c, routes[name], Case(*case), result)
    report["removed"] = {**witness(c, routes["all_reduce"]), "cases": {}}
    return report


def witness(c: Context, route: Route) -> dict[str, Any]:
    """What unpatched torch does with the route's first case."""
    counted()
    try:
        route.run(c, "xpu", Case(*route.cases()[0]))
        seen = "no error"
    except Exception as error:
        seen = describe(error)
        dist.distributed_c10d._world.pg_coalesce_state.clear()  # a block it left unfinished
    dist.barrier(group=c.cpu_group)
    return {"off": seen, "off_counts": counted()}


def reference(c: Context, route: Route, case: Case) -> list[torch.Tensor]:
    """The same route on the CPU. gloo refuses to average integers: summed there, divided here as oneCCL would."""
    if case.dtype.is_floating_point or case.name != "avg":
        return route.run(c, "cpu", case)
    summed = Case(case.dtype, case.shape, dist.ReduceOp.SUM, "sum")
    ranks = {"subgroup": 2, "group_of_one": 1}.get(route.run.__name__, c.ranks)
    return [output.div(ranks, rounding_mode="trunc") for output in route.run(c, "cpu", summed)]


def outcome(c: Context, route: Route, case: Case, expected: list[torch.Tensor]) -> dict[str, Any]:
    """The difference from the reference, or the error, and what reached the backend."""
    counted()
    try:
        row: dict[str, Any] = {"difference": difference(route.run(c, "xpu", case), expected)}
    except Exception as error:
        row = {"error": describe(error)}
        dist.distributed_c10d._world.pg_coalesce_state.clear()
    dist.barrier(group=c.cpu_group)
    return {**row, "counts": counted()}


def label(dtype: torch.dtype, shape: str) -> str:
    """A case's name in the report."""
    return f"{str(dtype).removeprefix('torch.')} {shape}"
