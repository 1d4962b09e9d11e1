"""Counters below c10d: what reached the process group of XPU tensors, by whatever route.

Gloo accepts reductions that oneCCL refuses, so a test that none was sent has to count::

    from simxpu import probe
    probe.reset()
    ...
    assert probe.avg_reductions() == 0
"""

from . import _C


def counts() -> dict[str, int]:
    """Calls per collective in this process, with the reduction if there is one: ``{"all_reduce:sum": 3, "all_gather":
    1}``.

    Collectives are named as in torch.distributed, reductions as in ReduceOp in lower case.
    """
    return dict(_C.collective_counts())


def avg_reductions() -> int:
    """How many ReduceOp.AVG collectives reached the process group, including those that it refused."""
    return sum(n for name, n in counts().items() if name.endswith(":avg"))


def reset() -> None:
    """Start counting from zero."""
    _C.reset_collective_counts()
