"""The receiving end: slots of shared memory in, lists of tensors to verl's callback out.

Two threads. The *reader* takes slots, copies them into arenas on the device and frees them; the caller's own thread runs
the callback on each group of tensors that is complete, while the reader fills the next. The tensors are always copies: a
callback may keep them.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from xpu_shim.core.log import logger
from xpu_shim.weights import early, legacy, segment, settings, tensors, verify, wire
from xpu_shim.weights.channel import Channel
from xpu_shim.weights.errors import Interrupted, PeerDied, WeightSyncError
from xpu_shim.weights.rendezvous import KEY, ReceiverSide
from xpu_shim.weights.sender import ARENA
from xpu_shim.weights.staging import Staging
from xpu_shim.weights.wire import Kind

_log = logger("xpu_shim.weights")

#: Most bytes handed to a callback that is told which call is the last. It may cut the weights anywhere, and smaller groups
#: let loading begin earlier; each call costs the engine a walk over its parameters, so they are not tiny.
GROUP = 256 << 20

#: The same where tensors stay on the host: what is in the processor's cache when it arrives is better loaded at once.
GROUP_ON_HOST = 16 << 20

#: Host arenas between syncs, at most `GROUP_ON_HOST` twice, so that their pages are touched only once.
_host_arenas: list[torch.Tensor] = []

#: verl's callback: takes [(name, tensor), …], and since verl 0.9.0 whether it is the last call.
Callback = Callable[..., Any]


class Tracked(list):
    """The list given to the callback; knows which item was taken last, so that a failure can name it."""

    taken: int = -1

    def __iter__(self) -> Iterator:
        for position, item in enumerate(list.__iter__(self)):
            self.taken = position
            yield item
        self.taken = -1  # all were taken: none is more suspect than the others


@dataclass
class _Group:
    """Tensors for one call of the callback, in memory of their own."""

    items: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    arenas: list[torch.Tensor] = field(default_factory=list)
    nbytes: int = 0
    last: bool = False


def takes_last(callback: Callback, original: Callable[..., Any] | None) -> bool:
    """Whether `callback` is to be told which call is the last.

    Args:
        callback: as given to `receive_weights`.
        original: verl's own `receive_weights`, which settles the case of a callback that takes any arguments.
    """
    try:
        parameters = inspect.signature(callback).parameters.values()
    except (TypeError, ValueError):
        parameters = ()  # type: ignore[assignment]
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters) or not positional:
        return original is None or "is_last" in original.__code__.co_varnames
    return len(positional) > 1


def receive_weights(endpoint: str, device: torch.device, callback: Callback, with_last: bool) -> None:
    """Receive one sync and give its tensors to `callback`.

    Args:
        endpoint: verl's address, "ipc://<path>".
        device: where the tensors go.
        callback: called with a list of (name, tensor), in the order sent; at least once.
        with_last: whether it also takes a bool, true in the last call. A callback that does not may need all it gets at
            once (an adapter's weights), and then verl's bucket size decides how much that is.

    Raises:
        WeightSyncError: the sender failed, died, is silent or refused; see its subclasses.
        Exception: whatever `callback` raised, or what kept this end from starting; the sender is told first.
    """
    with early.told(lambda: endpoint):
        _receive(endpoint, device, callback, with_last)


def _receive(endpoint: str, device: torch.device, callback: Callback, with_last: bool) -> None:
    options = settings.read()
    # The reader thread has its own current device.
    device = torch.empty(0, device=device).device
    meeting = ReceiverSide(endpoint, options.timeout)
    try:
        early.connects()
        first = meeting.hear()
        channel = meeting.open_channel(first)
        if channel is None:

            def load(items: list, last: bool) -> None:
                callback(*((items, last) if with_last else (items,)))
                _synchronize(device)

            _log.info("weight sync: the sender at %s runs without xpu-shim; using verl's own protocol", endpoint)
            legacy.receive(meeting, first, device, load)
            return
        said = first[KEY]
        # Two groups, in no more memory than one of verl's buckets would take: one being loaded, one being filled. A reader
        # that could run further ahead of the callback would only touch more memory.
        largest = GROUP_ON_HOST if device.type == "cpu" else GROUP
        budget = min(2 * largest, said["bucket_bytes"]) if with_last else said["bucket_bytes"]
        group_bytes = budget // 2 if with_last else budget
        reader = _Reader(channel, device, options, budget)
        try:
            channel.send(
                Kind.HELLO,
                {"token": said["token"], "pid": os.getpid(), "device": str(device), "group_bytes": group_bytes},
            )
            meeting.close()
            reader.start()
            _load_all(reader, channel, device, callback, with_last, verify.Check() if options.verify else None)
            reader.keep_arenas()
        except PeerDied:
            meeting.tidy()
            raise
        except BaseException as error:  # the first report counts, and this is often the second
            with contextlib.suppress(WeightSyncError):
                channel.send(Kind.ERROR, wire.report(error, "", reader.received))
            raise
        finally:
            reader.stop()
            channel.close()
    finally:
        meeting.close()


def _load_all(
    reader: _Reader,
    channel: Channel,
    device: torch.device,
    callback: Callback,
    with_last: bool,
    check: verify.Check | None,
) -> None:
    """Run the callback on every group; tells the sender of success or of the error."""
    count = 0
    done: dict[str, Any] = {}
    while True:
        group = reader.next_group()
        items = Tracked(group.items)
        try:
            if check is not None:
                check.received(group.items)
            callback(*((items, group.last) if with_last else (items,)))
            _synchronize(device)
            if check is not None:
                check.loaded(group.items)
                if group.last:
                    done["verified"] = check.finish(reader.sums)
                    verify.note("receiver", done["verified"])
        except BaseException as error:
            name, offset = _suspect(items, group)
            with contextlib.suppress(WeightSyncError):
                channel.send(Kind.ERROR, wire.report(error, name, offset))
            raise
        count += len(items)
        last = group.last
        del items
        if last:
            reader.forget()
        reader.done_with(group)
        try:
            channel.send(Kind.DONE if last else Kind.LOADED, {"tensors": count, "bytes": reader.received, **done})
        except PeerDied:
            if not last:
                raise
            _log.warning("weight sync: all weights are loaded, but the sender has gone")
        if last:
            return


def _suspect(items: Tracked, group: _Group) -> tuple[str, int]:
    """Name and offset of the tensor the callback was at; the first of the group if that cannot be told."""
    if not items:
        return "", 0
    position = max(items.taken, 0)
    name = list.__getitem__(items, position)[0]
    if items.taken < 0 and len(items) > 1:
        name = f"{name} … {list.__getitem__(items, len(items) - 1)[0]}"
    return name, group.offsets[position]


class _Reader:
    """The thread that empties slots.

    Args:
        channel: to the sender; this thread is the only one that receives on it.
        device: where arenas are, with an index.
        options: see `settings`.
        budget: most bytes of arenas not yet loaded, but at least one arena; at most verl's bucket size.
    """

    def __init__(self, channel: Channel, device: torch.device, options: settings.Settings, budget: int) -> None:
        self._channel, self._device, self._options, self._budget = channel, device, options, budget
        self._groups: queue.Queue[_Group | BaseException] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="xpu-shim-weights-reader", daemon=True)
        self._room = threading.Condition()
        self._held = 0
        self._stopped = False
        self._spare: list[torch.Tensor] = []
        self._uses: dict[int, int] = {}
        self._group = _Group()
        self._arena: torch.Tensor | None = None
        self._dtypes: dict[str, torch.dtype] = {}
        #: By number: the tensors of this group and those the sender asked to keep, for tied weights to refer to.
        self._all: dict[int, torch.Tensor] = {}
        self._kept: set[int] = set()
        self._group_start = self._count = 0
        self._name = ""
        self._offset = 0
        #: Bytes of tensors received.
        self.received = 0
        #: The sender's checksums by name, once all has arrived; None if it made none.
        self.sums: dict[str, str] | None = None

    def start(self) -> None:
        """Begin to read."""
        if self._device.type == "cpu":
            while _host_arenas:
                self._spare.append(_host_arenas.pop())
        self._thread.start()

    def stop(self) -> None:
        """End the thread, whatever it waits for."""
        self._stopped = True
        self._channel.interrupt()
        with self._room:
            self._room.notify_all()
        if self._thread.ident is not None:
            self._thread.join(10.0)

    def keep_arenas(self) -> None:
        """After a sync that went well: leave the host arenas that are free to the next one."""
        with self._room:
            if self._device.type == "cpu":
                spare = [arena for arena in self._spare if arena.numel() <= ARENA]
                while spare and sum(arena.numel() for arena in spare) > 2 * GROUP_ON_HOST:
                    spare.pop()
                _host_arenas[:] = spare
            self._spare.clear()

    def next_group(self) -> _Group:
        """Wait for the next complete group. The reader's own waits are bounded, so this one is.

        Raises:
            WeightSyncError: what the reader met.
        """
        while True:
            try:
                group = self._groups.get(timeout=1.0)
            except queue.Empty:
                if not self._thread.is_alive() and self._groups.empty():
                    raise WeightSyncError("weight sync: the receiver's reader thread ended without a word") from None
                continue
            if isinstance(group, BaseException):
                raise group
            return group

    def forget(self) -> None:
        """Drop the tensors kept for tied weights to refer to; the reader has ended or is about to."""
        self._all.clear()

    def done_with(self, group: _Group) -> None:
        """The callback has returned for this group: its memory may be used again unless somebody kept a tensor."""
        group.items.clear()
        with self._room:
            for arena in group.arenas:
                if _uses(arena) == self._uses.pop(id(arena), -1):
                    self._spare.append(arena)
            group.arenas.clear()
            self._held -= group.nbytes
            self._room.notify_all()

    def _run(self) -> None:
        try:
            with torch.no_grad():
                self._read()
        except Interrupted as error:
            self._groups.put(error)
        except BaseException as error:
            if not isinstance(error, WeightSyncError):  # not something the sender said, or its end
                with contextlib.suppress(WeightSyncError):
                    self._channel.send(Kind.ERROR, wire.report(error, self._name, self._offset))
            self._groups.put(error)

    def _read(self) -> None:
        frame = self._channel.receive("the sender's first frame")
        shared = None
        if frame.body["shared"]:
            if not frame.descriptors:
                raise RuntimeError("weight sync: the descriptor of the shared memory did not arrive")
            shared = segment.MAPPINGS.attach(frame.descriptors[0], frame.body["size"]).bytes
        slot_bytes = frame.body["size"] // frame.body["slots"] // tensors.ALIGNMENT * tensors.ALIGNMENT
        staging = Staging(self._device, self._options.pinned)
        while True:
            after = f"after {self._name!r}" if self._name else "the first one"
            frame = self._channel.receive(f"the sender's next tensors ({after}, byte {self._offset})")
            body = frame.body
            if frame.kind is Kind.END:
                if body["tensors"] != self._count:
                    raise RuntimeError(f"weight sync: {body['tensors']} tensors sent, {self._count} received")
                self.sums = body.get("sums")
                self._group.last = True
                self._groups.put(self._group)
                return
            if body.get("group"):
                self._end_group()
            if "new" in body:
                self._open_arena(int(body["new"]))
            for entry in body.get("tensors", ()):
                self._begin(*entry)
            slot, length, start = body["slot"], body["length"], body.get("start", 0)
            if slot < 0:
                continue
            if shared is not None:
                source = shared[slot * slot_bytes : slot * slot_bytes + length]
            else:
                source = torch.frombuffer(bytearray(frame.payload), dtype=torch.uint8)
            assert self._arena is not None
            staging.to_device(source, self._arena[start : start + length])
            self._channel.send(Kind.FREE, {"slot": slot})

    def _begin(self, name: str, dtype: str, shape: Any, start: int, keep: int = 0) -> None:
        """A tensor begins in the current arena, or, with no dtype, is tied to the one numbered `shape`."""
        self._name, self._offset = name, self.received
        if not dtype:
            tensor = self._all[shape]
        else:
            if dtype not in self._dtypes:
                self._dtypes[dtype] = tensors.dtype_of(dtype)
            assert self._arena is not None
            tensor = tensors.view(self._arena, start, self._dtypes[dtype], shape)
            self.received += tensor.nbytes
        self._all[self._count] = tensor
        if keep:
            self._kept.add(self._count)
        self._group.items.append((name, tensor))
        self._group.offsets.append(self._offset)
        self._count += 1

    def _end_group(self) -> None:
        for number in range(self._group_start, self._count):
            if number not in self._kept:
                del self._all[number]
        self._group_start = self._count
        self._groups.put(self._group)
        self._group = _Group()

    def _open_arena(self, size: int) -> None:
        """Take an arena, once there is room for it in the budget."""
        deadline = time.monotonic() + self._options.timeout
        with self._room:
            while self._held and self._held + size > self._budget and self._held > self._group.nbytes:
                if self._stopped:
                    raise Interrupted("weight sync: the receiver's reader was told to stop")
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"weight sync: the callback did not return within {self._options.timeout:g} s "
                        "(XPU_SHIM_WEIGHT_SYNC_TIMEOUT)"
                    )
                self._room.wait(0.5)
            self._held += size
            fitting = [position for position, spare in enumerate(self._spare) if spare.numel() == size]
            arena = self._spare.pop(fitting[-1]) if fitting else None
            if arena is None and size > ARENA:
                self._spare.clear()  # rather than holding those and this
        if arena is None:
            arena = torch.empty(size, dtype=torch.uint8, device=self._device)
        self._uses[id(arena)] = _uses(arena)
        self._arena = arena
        self._group.arenas.append(arena)
        self._group.nbytes += size


def _uses(tensor: torch.Tensor) -> int:
    """How many tensors share this one's memory; a number nothing equals where torch does not tell."""
    count = getattr(torch._C, "_storage_Use_Count", None)
    return count(tensor.untyped_storage()._cdata) if count is not None else -2


def _synchronize(device: torch.device) -> None:
    """Wait for the device, so that memory the callback read may be written again."""
    if device.type != "cpu":
        torch.get_device_module(device.type).synchronize(device)
