"""The environment of a vLLM server, put right before its engine is started: the engine's processes inherit it."""

from __future__ import annotations

import os

from xpu_shim.core.log import logger
from xpu_shim.devices import machine as _machine
from xpu_shim.devices.rayenv import ROLLOUT_VARIABLES
from xpu_shim.intel.visibility import MASK, SELECTOR, VisibilityError, mask_of, parse_mask, visible_devices

_log = logger("xpu_shim.rollout")

#: vLLM's own variable for the start method of its workers.
START_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"


def prepare(assigned: str) -> str:
    """Mark this process and its children as rollout, drop the selector, ask for spawned workers.

    A selector is dropped whatever it says: what Ray assigned to the replica decides, and goes into the mask.

    Args:
        assigned: comma-separated ids of the replica's devices on this node, as Ray assigned them to its trainers.

    Returns:
        The mask of the replica: the same devices by physical ordinal.

    Raises:
        VisibilityError: if the ids are no ordinals or name no device of this machine.
    """
    os.environ.update(ROLLOUT_VARIABLES)
    selector = os.environ.pop(SELECTOR, None)
    if selector is not None:
        _log.info("%s=%r is not handed to vLLM; the replica's devices are %s", SELECTOR, selector, assigned)
    # A forked worker inherits a driver that cannot be initialised again.
    os.environ.setdefault(START_METHOD, "spawn")
    _machine.remember_mask()
    return replica_mask(assigned, ids_are_ordinals())


def ids_are_ordinals() -> bool:
    """Whether Ray's ids of GPUs are what a mask calls them; otherwise they count from 0 within what Ray was allowed."""
    import ray

    manager = ray._private.accelerators.get_accelerator_manager_for_resource("GPU")
    return manager is not None and manager.get_visible_accelerator_ids_env_var() == MASK


def replica_mask(assigned: str, ordinals: bool) -> str:
    """The mask for the devices `assigned`.

    Args:
        assigned: comma-separated ids.
        ordinals: whether they are physical; if not they count within the devices this process was allowed.

    Raises:
        VisibilityError: if an id is malformed or there is no such device.
    """
    here = _machine.machine()
    if ordinals:
        entries = parse_mask(assigned, here.hierarchy)
        mask = assigned
    else:
        allowed = _machine.allowed_devices()
        entries = parse_mask(assigned) or ()
        chosen = [allowed[number] for number, _ in entries if number < len(allowed)]
        mask = mask_of(chosen, here.cards, here.hierarchy) if len(chosen) == len(entries) else assigned
    if here.gpus and entries is not None and not visible_devices(mask, here.cards, here.hierarchy):
        raise VisibilityError(
            f"Ray assigned GPU {assigned!r} to this vLLM replica, but sysfs shows {len(here.devices(None))} device(s) "
            f"on this node, numbered from 0. Start Ray with the number of GPUs the node has, and with the same {MASK} "
            "as the training command."
        )
    if mask != assigned:
        _log.info("Ray's GPU %s is %s=%s", assigned, MASK, mask)
    return mask
