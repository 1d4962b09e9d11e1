"""No two ranks on one device: once the default process group exists, every rank tells the others where it sits."""

from __future__ import annotations

import itertools
import json
import os
import socket
from datetime import timedelta
from typing import Any, NamedTuple

from xpu_shim.core.log import logger, warn_once
from xpu_shim.devices import settings
from xpu_shim.intel.visibility import MASK

_log = logger("xpu_shim.devices")

#: How long a rank waits for the others' answers. All of them have just left the rendezvous, so seconds are plenty.
TIMEOUT = timedelta(seconds=120)


class SharedDeviceError(RuntimeError):
    """Several ranks compute on one device; the message has a table of all ranks."""


class Seat(NamedTuple):
    """Where one rank sits."""

    rank: int
    host: str
    index: int  # type: ignore[assignment]
    uuid: str
    mask: str | None


def my_seat(rank: int) -> Seat:
    """This process's seat; initialises the device if it was not."""
    import torch

    index = torch.xpu.current_device()
    uuid = str(torch.xpu.get_device_properties(index).uuid)
    return Seat(rank, socket.gethostname(), index, uuid, os.environ.get(MASK))


#: How often this process made a default group; part of the keys, because a store may outlive its group.
_generation = itertools.count()


def exchange(store: Any, seat: Seat, world_size: int) -> list[Seat]:
    """Every rank's seat, through the group's store: needs no collective, so a rank without the shim cannot hang it.

    Raises:
        torch.distributed.DistStoreError: if some rank did not answer within the limit.
    """
    prefix = f"xpu_shim/seat/{next(_generation)}"
    store.set(f"{prefix}/{seat.rank}", json.dumps(seat))
    keys = [f"{prefix}/{rank}" for rank in range(world_size)]
    store.wait(keys, TIMEOUT)
    return [Seat(*json.loads(store.get(key))) for key in keys]


def check(seats: list[Seat]) -> None:
    """Complain if two seats are on one device.

    Raises:
        SharedDeviceError: unless ``XPU_SHIM_ALLOW_SHARED_DEVICE=1``, which makes it a warning.
    """
    taken: dict[tuple[str, str], list[int]] = {}
    for seat in seats:
        taken.setdefault((seat.host, seat.uuid), []).append(seat.rank)
    shared = {place: ranks for place, ranks in taken.items() if len(ranks) > 1}
    if not shared:
        return
    groups = "; ".join(
        f"ranks {', '.join(map(str, ranks))} on {uuid} of {host}" for (host, uuid), ranks in shared.items()
    )
    message = (
        f"{len(seats)} ranks sit on {len(taken)} device(s): {groups}.\n{table(seats)}\n"
        "Start at most one rank a device and check the mask; XPU_SHIM_ALLOW_SHARED_DEVICE=1 allows sharing."
    )
    if not settings.shared_device_allowed():
        raise SharedDeviceError(message)
    if seats[0].host == socket.gethostname():
        warn_once(message)


def table(seats: list[Seat]) -> str:
    """The seats as a plain-text table."""
    rows = [("rank", "host", "index", "uuid", MASK)]
    rows += [
        (str(seat.rank), seat.host, f"xpu:{seat.index}", seat.uuid, "(unset)" if seat.mask is None else seat.mask)
        for seat in seats
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def check_default_group() -> None:
    """Exchange and check the seats of the default process group.

    Raises:
        SharedDeviceError: see :func:`check`.
    """
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _get_default_store

    world_size = dist.get_world_size()
    if world_size == 1:
        return
    seat = my_seat(dist.get_rank())
    try:
        seats = exchange(_get_default_store(), seat, world_size)
    except dist.DistStoreError as error:
        _log.warning(
            "could not check that ranks sit on distinct devices: not every rank answered within %d s (is the shim "
            "installed on all nodes?): %s",
            TIMEOUT.total_seconds(),
            error,
        )
        return
    check(seats)
    _log.info("rank %d of %d sits alone on xpu:%d (%s)", seat.rank, world_size, seat.index, seat.uuid)
