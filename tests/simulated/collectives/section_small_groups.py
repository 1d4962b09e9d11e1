"""Groups on a stack that returns the sum for MIN and MAX: without a CPU half, of some of the ranks, many at once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from context import counted, describe, patched

if TYPE_CHECKING:
    from context import Context

MAX = dist.ReduceOp.MAX


def rows(c: Context) -> dict[str, Any]:
    """Row to what was seen, with the patches on."""
    device = c.device("xpu")

    def maximum(group: Any) -> Any:
        tensor = torch.tensor([c.rank + 1.0], device=device)
        try:
            dist.all_reduce(tensor, MAX, group=group)
        except Exception as error:
            return describe(error)
        return tensor.item()

    messages: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    handler = Keep(level=logging.WARNING)
    logging.getLogger("xpu_shim").addHandler(handler)
    report: dict[str, Any] = {}
    ranks = list(range(c.ranks))
    with patched():
        whole, alone = dist.new_group(ranks), dist.new_group(ranks, backend="xccl")
        report["with_cpu_half"] = [maximum(whole), maximum(whole)]
        counted()
        report["again"] = maximum(whole)
        report["again_counts"] = counted()
        report["without_cpu_half"] = maximum(alone)
        try:
            funcol.all_reduce(torch.ones(2, device=device), "max", alone).tolist()
        except Exception as error:
            report["functional_without_cpu_half"] = describe(error)
        report["sum_without_cpu_half"] = funcol.all_reduce(torch.ones(2, device=device), "sum", alone).tolist()
        tensor = torch.tensor([c.rank + 1.0], device=device)
        try:
            with dist._coalescing_manager(dist.new_group(ranks, backend="xccl"), device):
                dist.all_reduce(tensor, MAX, group=next(iter(dist.distributed_c10d._world.pg_coalesce_state)))
            report["block_without_cpu_half"] = tensor.item()
        except Exception as error:
            report["block_without_cpu_half"] = describe(error)
        # Only the first two ranks have work; the others must not be waited for.
        first_two = dist.new_group([0, 1])
        report["part_of_the_ranks"] = maximum(first_two) if c.rank < 2 else 2.0
        # Every pair has a group, and a rank reaches each of its groups at another time than its partners reach others.
        pairs = {(a, b): dist.new_group([a, b]) for a in ranks for b in ranks if a < b}
        report["pairs"] = [maximum(group) - b for (a, b), group in pairs.items() if c.rank in (a, b)]
    logging.getLogger("xpu_shim").removeHandler(handler)
    report["warnings"] = messages
    return report
