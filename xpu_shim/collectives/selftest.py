"""Does this process group compute MIN, MAX and PRODUCT on xpu as asked? Found out once, on tensors of two elements.

Some releases of the stack returned the sum for MIN and MAX. Every rank of a group reaches a collective in the same
order, so the check can be a handful of collectives of its own, run in front of the first such call: no rank can be
elsewhere. The ranks then add up what they saw, so that all of them come to the same verdict.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from xpu_shim.collectives import cpu_half
from xpu_shim.core.log import logger, warn_once

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logger("xpu_shim.collectives")

#: What is tried. oneCCL chooses its algorithm by dtype; one that is not listed is trusted only if all of these pass.
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64)

#: Group to (method, operation) to the dtypes that came out wrong. Weak: a destroyed group takes its verdicts along.
_verdicts: weakref.WeakKeyDictionary[Any, dict[tuple[str, str], frozenset[torch.dtype]]] = weakref.WeakKeyDictionary()


def known(group: object, method: str, op: str) -> frozenset[torch.dtype] | None:
    """The verdict of an earlier check: the dtypes that are wrong; None if there was none yet."""
    return _verdicts.get(group, {}).get((method, op))


def affected(wrong: frozenset[torch.dtype], dtype: torch.dtype) -> bool:
    """Whether a verdict speaks against this dtype."""
    return dtype in wrong or (bool(wrong) and dtype not in DTYPES)


def pattern(op: str, rank: int, ranks: int) -> tuple[list[int], list[int]]:
    """Two elements a rank contributes, and what the reduction of all ranks' must be.

    Chosen so that a sum, or another of the operations, differs from the right answer in at least one element.
    """
    if op == "PRODUCT":
        return ([3, 2] if rank < 2 else [1, 1]), [9, 4]
    return [rank + 1, ranks - rank], [ranks, ranks] if op == "MAX" else [1, 1]


def check(
    group: Any,
    method: str,
    op: str,
    device: torch.device,
    attempt: Callable[[torch.Tensor], torch.Tensor | None],
    add_up: Callable[[torch.Tensor], None],
) -> frozenset[torch.dtype]:
    """Try one operation of one group; a collective call of all its ranks. The answer is kept for the group's life.

    Args:
        group: the process group.
        method: the name of what is tried, for the verdict's key and the log.
        op: "MIN", "MAX" or "PRODUCT".
        device: where.
        attempt: reduces a tensor of shape (2,) by `op`; None on a rank that gets no result.
        add_up: sums an int32 tensor over the ranks, in place.

    Returns:
        The dtypes for which some rank got a wrong result.
    """
    from torch.utils._python_dispatch import _disable_current_modes

    ranks = group.size()
    wrong: frozenset[torch.dtype] = frozenset()
    if ranks > 1:
        given, expected = pattern(op, group.rank(), ranks)
        # The caller's modes (a counter of collectives, a fake tensor mode) are not meant for these.
        with _disable_current_modes(), torch.no_grad():
            flags = torch.zeros(len(DTYPES), dtype=torch.int32, device=device)
            for index, dtype in enumerate(DTYPES):
                try:
                    result = attempt(torch.tensor(given, dtype=dtype, device=device))
                except (RuntimeError, ValueError, TypeError) as error:
                    # Refused, not wrong: the caller's own call will say so, if it uses this dtype at all.
                    _log.debug("%s with %s on %s: %s", method, op, dtype, error)
                    continue
                if result is not None:
                    flags[index] = (result != torch.tensor(expected, dtype=dtype, device=device)).any()
            add_up(flags)
            wrong = frozenset(dtype for dtype, count in zip(DTYPES, flags.tolist(), strict=True) if count)
    _verdicts.setdefault(group, {})[method, op] = wrong
    names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in wrong))
    _log.info("%s with ReduceOp.%s on xpu, %d ranks: %s", method, op, ranks, f"wrong for {names}" if wrong else "right")
    if wrong and cpu_half.available(group):
        # Without the method: one line for an operation is enough.
        warn_once(
            f"ReduceOp.{op} gives wrong results on xpu with this oneCCL ({names}). It is computed on the CPU through "
            "gloo instead, which is right but slower; a newer oneCCL makes this unnecessary."
        )
    return wrong
