"""verl's own protocol, for a peer that runs without the shim: one bucket at a time, an empty answer for each.

Such a peer maps a named segment of the size it is told, before it is known that it has no shim. So the name and the size
are offered with the first message; the memory is allocated only once it is needed, and never touched where it is not.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from typing import Any

import torch

from xpu_shim.core.log import logger
from xpu_shim.weights import segment, stale, tensors
from xpu_shim.weights.errors import UnsendableTensor, WeightSyncError
from xpu_shim.weights.rendezvous import ReceiverSide, SenderSide

_log = logger("xpu_shim.weights")

#: Most memory allocated for the bucket unless a single tensor needs more.
USUAL = 256 << 20


class Offer:
    """A named segment, sparse until `allocate`: it takes no memory and no room while nobody uses it.

    Attributes:
        message: what verl's receiver wants to be told: name and size in bytes.
        problem: why there is no segment, or "".
    """

    def __init__(self, size: int, directory: str = stale.SHM_DIRECTORY) -> None:
        self.size, self.directory = size, directory
        self.problem = ""
        self.name = stale.segment_name()
        self._path = os.path.join(directory, self.name)
        self._descriptor = -1
        self._map: mmap.mmap | None = None
        stale.remove_dead_segments(directory)
        try:
            self._descriptor = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            self.problem = str(error)
        self.message = {"name": self.name, "size": size}

    def allocate(self, size: int) -> int:
        """Allocate the first `size` bytes, or the largest half, quarter, … there is room for; how many now are.

        Raises:
            WeightSyncError: if the segment could not even be made.
        """
        if self.problem:
            raise WeightSyncError(
                f"weight sync: the receiver runs without xpu-shim and needs a segment in {self.directory}: {self.problem}"
            )
        free = segment.free_bytes(self.directory)
        wanted = min(size, self.size)
        while wanted > segment.PAGE and wanted > free:
            wanted //= 2
        while wanted >= segment.PAGE:
            try:
                os.posix_fallocate(self._descriptor, 0, wanted)
                return wanted
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.ENOMEM):
                    raise
                wanted //= 2
        return 0

    def memory(self) -> torch.Tensor:
        """uint8 tensor over the whole segment; only what is allocated may be touched."""
        self._map = mmap.mmap(self._descriptor, self.size, flags=mmap.MAP_SHARED)
        return torch.frombuffer(self._map, dtype=torch.uint8)

    def close(self) -> None:
        """Unlink it; the peer's mapping stays valid until the peer drops it."""
        self._map = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            try:
                os.unlink(self._path)
            except OSError:
                pass


class LegacySender:
    """Serves a receiver without the shim. Called by `sender.Sender`, which gave the first message already.

    Args:
        meeting: the rendezvous at which the receiver answered.
        offer: the segment it has mapped.
    """

    def __init__(self, meeting: SenderSide, offer: Offer) -> None:
        self._meeting, self._offer = meeting, offer
        self.allocated = offer.allocate(USUAL)
        if self.allocated < min(USUAL, offer.size):
            _log.warning(
                "weight sync: %s has room for a bucket of %d KiB only, and the receiver runs without xpu-shim",
                offer.directory,
                self.allocated >> 10,
            )
        self._memory = offer.memory()
        self._bucket: dict[str, dict[str, Any]] = {}
        self._used = 0
        self.buckets = 0

    def put(self, name: str, tensor: torch.Tensor) -> None:
        """Add a tensor to the bucket, sending the bucket first if it is full.

        Raises:
            UnsendableTensor: it is larger than the bucket, which this receiver cannot put together from parts.
        """
        start = -(-self._used // tensors.ALIGNMENT) * tensors.ALIGNMENT
        if start + tensor.nbytes > self.allocated and self._bucket:
            self.flush(last=False)
            start = 0
        if tensor.nbytes > self.allocated:
            self.allocated = max(self.allocated, self._offer.allocate(tensor.nbytes))
        if tensor.nbytes > self.allocated:
            raise UnsendableTensor(
                f"weight sync: {name!r} has {tensor.nbytes} bytes, the bucket {self.allocated}. The receiver runs without "
                "xpu-shim and takes only whole tensors: install xpu-shim in the rollout's environment, or raise "
                "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes and the room in "
                f"{self._offer.directory}."
            )
        position = start
        for part in tensors.pieces(tensor, iter(lambda: tensor.nbytes or 1, 0)) if tensor.nbytes else ():
            tensors.write(part, self._memory[position:])
            position += part.nbytes
        self._bucket[name] = {
            "name": name,
            "shape": tensor.shape,
            "dtype": tensor.dtype,
            "offset": start,
            "handle": None,
        }
        self._used = position

    def flush(self, last: bool) -> None:
        """Send the bucket and wait until the receiver has loaded it."""
        names = list(self._bucket)
        what = f"the receiver to load {names[0]!r} to {names[-1]!r}" if names else "the receiver to end"
        self._meeting.ask({"bucket_meta": self._bucket, "is_last": last}, what)
        self._bucket, self._used = {}, 0
        self.buckets += 1

    def close(self) -> None:
        """Drop the memory."""
        del self._memory


def receive(meeting: ReceiverSide, first: Any, device: torch.device, load: Callable[[list, bool], None]) -> None:
    """Receive from a sender without the shim.

    If `load` raises, the remaining buckets are taken and thrown away: that sender waits for every answer without limit,
    and learns of the error from the rollout server once it has sent all.

    Args:
        meeting: the rendezvous that heard `first`.
        first: verl's first message: {"name", "size"} of a segment.
        device: where the tensors go; they are always copies.
        load: called with a list of (name, tensor) and whether it is the last.

    Raises:
        WeightSyncError: the sender went away, said nothing, or the segment cannot be opened.
        Exception: whatever `load` raised.
    """
    size = int(first["size"])
    path = os.path.join(stale.SHM_DIRECTORY, first["name"])
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            memory = torch.frombuffer(mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED), dtype=torch.uint8)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        raise WeightSyncError(
            f"weight sync: cannot map the sender's segment {path} of {size} bytes: {error}"
        ) from error
    meeting.answer()
    failure: Exception | None = None
    while True:
        message = meeting.hear("the sender's next bucket")
        last = bool(message["is_last"])
        if failure is None:
            try:
                load([(name, _copy(memory, meta, device)) for name, meta in message["bucket_meta"].items()], last)
            except Exception as error:
                failure = error
                _log.warning("weight sync: loading failed (%s); taking the sender's remaining buckets first", error)
        if last:
            break
        meeting.answer()
    del memory
    meeting.answer_last()
    if failure is not None:
        raise failure


def discard(meeting: ReceiverSide) -> None:
    """Take everything from a sender without the shim and throw it away: it waits for every answer without limit.

    Args:
        meeting: the rendezvous that heard its first message.

    Raises:
        WeightSyncError: the sender went away or said nothing.
    """
    meeting.answer()
    while not meeting.hear("the sender's next bucket")["is_last"]:
        meeting.answer()
    meeting.answer_last()


def _copy(memory: torch.Tensor, meta: dict[str, Any], device: torch.device) -> torch.Tensor:
    """A tensor of its own with the bytes the message describes; senders before 0.9.1 do not align them."""
    if meta.get("handle") is not None:
        raise WeightSyncError(f"weight sync: {meta['name']!r} came as a device handle, but shared memory was agreed")
    dtype, shape, start = meta["dtype"], list(meta["shape"]), int(meta["offset"])
    length = torch.Size(shape).numel() * dtype.itemsize
    own = torch.empty(length, dtype=torch.uint8, device=device)
    own.copy_(memory[start : start + length])
    return tensors.view(own, 0, dtype, shape)
