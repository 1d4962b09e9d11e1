"""Which device a scheduler gave this process: Ray's assignment, or the local rank of a launcher."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from xpu_shim.devices.machine import allowed_devices
from xpu_shim.intel.visibility import MASK


class Assignment(NamedTuple):
    """What a scheduler said."""

    #: Ordinal of the device, as a mask would name it; None where only a torch index is known.
    ordinal: str | None
    #: Torch index within the allowed devices; None where only the ordinal is known.
    index: int | None  # type: ignore[assignment]
    #: Who said so, for messages: "Ray" or "LOCAL_RANK".
    source: str


def current() -> Assignment | None:
    """What was assigned to this process, or None (a driver, a Ray worker without a GPU).

    In a Ray worker only Ray counts: verl sets LOCAL_RANK in all of them, those without a GPU included.
    """
    return from_ray() if in_ray_worker() else from_launcher()


def in_ray_worker() -> bool:
    """Whether this process executes a Ray task or actor."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    return ray.get_runtime_context().worker.mode == ray._private.worker.WORKER_MODE


def in_worker_group() -> bool:
    """Whether verl started this Ray worker as a member of a worker group: it puts the group's name in its environment.

    Known before the worker's class is, which is when Ray asks for the mask.
    """
    return bool(os.environ.get("WG_PREFIX") or os.environ.get("RAY_LOCAL_WORLD_SIZE"))


def from_ray() -> Assignment | None:
    """Ray's assignment for this worker, or None in a worker without a GPU.

    Ordinals are physical: with the shim's Ray patch in every release, and in any release whose manager for "GPU" works
    with ``ZE_AFFINITY_MASK``. Any other manager counts from 0 within what the node's raylet was allowed.
    """
    import ray

    ids = sorted(ray.get_runtime_context().get_accelerator_ids().get("GPU") or (), key=lambda text: (len(text), text))
    if not ids:
        return None
    chosen = ids[local_rank_in_ray() % len(ids)] if len(ids) > 1 else ids[0]
    manager = ray._private.accelerators.get_accelerator_manager_for_resource("GPU")
    if manager.get_visible_accelerator_ids_env_var() == MASK:  # type: ignore[union-attr]
        return Assignment(str(chosen), None, "Ray")
    devices = allowed_devices()
    number = int(chosen)
    return Assignment(str(devices[number].ordinal) if number < len(devices) else str(chosen), None, "Ray")


def local_rank_in_ray() -> int:
    """Rank within the node: verl gives its Ray workers the global rank and the number of ranks on a node."""
    size = int(os.environ.get("RAY_LOCAL_WORLD_SIZE") or 1)
    return int(os.environ.get("RANK") or 0) % max(size, 1)


def from_launcher() -> Assignment | None:
    """The local rank torchrun (or another launcher) gave this process, or None without one.

    Raises:
        ValueError: if ``LOCAL_RANK`` is not a number.
    """
    value = os.environ.get("LOCAL_RANK")
    if value is None:
        return None
    if not value.isdigit():
        raise ValueError(f"LOCAL_RANK={value!r} is not a number. Allowed: 0, 1, … below LOCAL_WORLD_SIZE.")
    return Assignment(None, int(value), "LOCAL_RANK")
