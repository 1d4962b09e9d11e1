"""MIN, MAX and PRODUCT on the routes that take them, on a stack that returns the sum for MIN and MAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from context import patched
from reduction_routes import ROUTES, Case
from section_routes import outcome, reference

if TYPE_CHECKING:
    from context import Context

OPERATIONS = {"min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX, "product": dist.ReduceOp.PRODUCT}
DTYPES = (torch.float32, torch.bfloat16, torch.int64)


def rows(c: Context) -> dict[str, Any]:
    """Route to operation to `off` and, by dtype, `on`."""
    routes = {name: route for name, route in ROUTES.items() if route.compares}
    tasks = {
        (route, op, dtype): Case(dtype, ROUTES[route].shapes[0], OPERATIONS[op], op)
        for route in routes
        for op in OPERATIONS
        for dtype in DTYPES
    }
    expected = {key: reference(c, routes[key[0]], case) for key, case in tasks.items()}
    report: dict[str, Any] = {route: {op: {"on": {}} for op in OPERATIONS} for route in routes}
    for key, case in tasks.items():
        route, op, dtype = key
        if dtype == DTYPES[0]:
            report[route][op]["off"] = outcome(c, routes[route], case, expected[key])
    with patched():
        for key, case in tasks.items():
            route, op, dtype = key
            name = str(dtype).removeprefix("torch.")
            report[route][op]["on"][name] = outcome(c, routes[route], case, expected[key])
    return report
