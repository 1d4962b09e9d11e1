"""xpu-shim: run unchanged verl commands on Intel GPUs.

This module is imported at every interpreter start, so it imports nothing. What runs then is in `_boot`; what runs once
verl is looked up is in `_finder`; everything else is imported only in a process that has work for an Intel GPU.
"""

__version__ = "0.1.0"


def status():
    """Return what the shim did in this process.

    Returns:
        dict: `pid`, `process` ("driver", "worker" or "rollout"), `active` (bool), `reason` (why it is or is not
        active) and `patches`, a mapping of patch id to `{"state", "reason", "modules"}`. States are those of
        `xpu_shim.core.ledger`.
    """
    from xpu_shim.runtime import describe

    return describe()
