"""Shared memory that is really there: allocated before it is mapped, so that touching it cannot raise SIGBUS.

A segment is an open file without a name; the other process gets its descriptor through the channel. Nothing has to be
unlinked, not even after SIGKILL. `memfd` memory is not bounded by the size of /dev/shm (64 MiB in a default container).
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from typing import TYPE_CHECKING

import psutil

from xpu_shim.core.log import logger, warn_once
from xpu_shim.weights.stale import SHM_DIRECTORY

if TYPE_CHECKING:
    import torch

_log = logger("xpu_shim.weights")

#: Below this a segment is not worth having; the bytes go through the socket.
SMALLEST = 64 << 10

#: Share of what is free that one rank takes at most: other ranks and data loaders want some too.
_SHARE = 0.5

PAGE = mmap.PAGESIZE


class Segment:
    """Mapped shared memory.

    Attributes:
        descriptor: the open file, or -1 at the receiving end.
        size: bytes, a multiple of the page size.
        identity: (device, inode), by which the other end knows a segment it has mapped before.
        bytes: uint8 tensor of shape (size,) over the memory.
        kind: "memfd", "shm" or "" at the receiving end.
    """

    def __init__(self, descriptor: int, size: int, kind: str) -> None:
        import torch

        status = os.fstat(descriptor)
        if status.st_size < size:
            raise ValueError(f"segment of {status.st_size} bytes, {size} expected")
        self.descriptor, self.size, self.kind = descriptor, size, kind
        self.identity = (status.st_dev, status.st_ino)
        # Populated at once: a fault for every page during the first copy costs several times more.
        self._map = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self.bytes: torch.Tensor = torch.frombuffer(self._map, dtype=torch.uint8)

    def close(self) -> None:
        """Close the descriptor and drop the mapping (it goes when the last tensor over it does)."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        del self.bytes, self._map


def create(size: int, backend: str = "auto", directory: str = SHM_DIRECTORY) -> Segment | None:
    """Allocate up to `size` bytes of shared memory.

    Args:
        size: bytes wanted, at least `SMALLEST`.
        backend: see `settings.BACKENDS`.
        directory: where named shared memory lives, for backend "shm".

    Returns:
        A segment of `size` or, with one warning, fewer bytes; None if there is no memory at all.
    """
    size = -(-max(size, SMALLEST) // PAGE) * PAGE
    reasons = []
    for kind in {"auto": ("memfd", "shm"), "memfd": ("memfd",), "shm": ("shm",)}.get(backend, ()):
        try:
            descriptor = _open(kind, directory)
        except OSError as error:
            reasons.append(f"{kind}: {error}")
            continue
        free = free_memory() if kind == "memfd" else free_bytes(directory)
        wanted = min(size, int(free * _SHARE) // PAGE * PAGE)
        while wanted >= SMALLEST:
            try:
                os.posix_fallocate(descriptor, 0, wanted)
                os.ftruncate(descriptor, wanted)
                segment = Segment(descriptor, wanted, kind)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.ENOMEM):
                    reasons.append(f"{kind}: {error}")
                    break
                os.ftruncate(descriptor, 0)
                wanted = wanted // 2 // PAGE * PAGE
                continue
            if wanted < size:
                warn_once(
                    f"weight sync: {size >> 10} KiB of shared memory wanted, {wanted >> 10} KiB taken: "
                    f"{_place(kind, directory)} has {free >> 10} KiB free. Syncs are slower. Make more room there, or set "
                    "XPU_SHIM_WEIGHT_SYNC_SHM_MB lower to silence this."
                )
            return segment
        else:
            reasons.append(f"{kind}: {_place(kind, directory)} has {free >> 10} KiB free")
        os.close(descriptor)
    if backend != "socket":
        warn_once(
            f"weight sync: no shared memory to be had ({'; '.join(reasons)}). The weights go through a socket, several "
            "times slower. Make room in /dev/shm (docker run --shm-size) or raise the container's memory limit."
        )
    return None


def free_bytes(directory: str) -> int:
    """Bytes free in the file system of `directory`; 0 if it cannot be asked."""
    try:
        status = os.statvfs(directory)
    except OSError:
        return 0
    # A tmpfs without a size limit reports 0 blocks in all.
    return status.f_bavail * status.f_frsize if status.f_blocks else free_memory()


def free_memory() -> int:
    """Bytes of memory this process may still use: the machine's, or the control group's if that is less."""
    free = psutil.virtual_memory().available
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            limit = file.read().strip()
        with open("/sys/fs/cgroup/memory.current", encoding="ascii") as file:
            used = int(file.read())
        with open("/sys/fs/cgroup/memory.stat", encoding="ascii") as file:
            statistics = dict(line.split() for line in file)
        if limit != "max":
            free = min(free, int(limit) - used + int(statistics.get("inactive_file", 0)))
    except (OSError, ValueError):
        pass  # no control group of version 2
    return max(0, free)


def _open(kind: str, directory: str) -> int:
    if kind == "memfd":
        return os.memfd_create("xpu-shim-weights", os.MFD_CLOEXEC)
    return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)


def _place(kind: str, directory: str) -> str:
    return "memory" if kind == "memfd" else directory


class Pool:
    """The sending process's segments between syncs: one idle segment is kept, so that its pages are touched only once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: Segment | None = None

    def take(self, size: int, backend: str) -> Segment | None:
        """The idle segment if it has the size and kind wanted, else a new one, else None (see `create`)."""
        if backend == "socket":
            return None
        with self._lock:
            idle, self._idle = self._idle, None
        if idle is not None:
            fits = idle.size == -(-max(size, SMALLEST) // PAGE) * PAGE
            if fits and (backend in ("auto", idle.kind)):
                return idle
            idle.close()
        return create(size, backend)

    def give_back(self, segment: Segment) -> None:
        """Keep a segment for the next sync. Only one that no receiver can still be reading."""
        with self._lock:
            segment, self._idle = self._idle, segment  # type: ignore[assignment]
        if segment is not None:
            segment.close()

    def clear(self) -> None:
        """Close the idle segment."""
        with self._lock:
            segment, self._idle = self._idle, None
        if segment is not None:
            segment.close()

    def forget(self) -> None:
        """In a forked child: the segment is the parent's."""
        self._lock, self._idle = threading.Lock(), None


class Mappings:
    """The receiving process's mapping of the last segment it was given."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: Segment | None = None

    def attach(self, descriptor: int, size: int) -> Segment:
        """Map a segment, or find it mapped already; the descriptor is closed.

        Raises:
            OSError, ValueError: it cannot be mapped, or is smaller than announced.
        """
        try:
            status = os.fstat(descriptor)
            with self._lock:
                # An inode number cannot be used again while a mapping holds the inode.
                last = self._last
                if last is None or last.identity != (status.st_dev, status.st_ino) or last.size != size:
                    self._last = last = Segment(descriptor, size, "")
                    last.descriptor = -1  # closed below; the mapping stays
                return last
        finally:
            os.close(descriptor)

    def forget(self) -> None:
        """Drop the mapping."""
        self._lock, self._last = threading.Lock(), None


POOL = Pool()
MAPPINGS = Mappings()

os.register_at_fork(after_in_child=POOL.forget)
os.register_at_fork(after_in_child=MAPPINGS.forget)
