"""The sending end: tensors in, slots of shared memory out.

The weights are one stream of bytes, cut twice. An *arena* is the memory at the receiver in which tensors lie whole; one
that is larger than the usual arena gets one of its own. A *slot* is a part of the shared segment; it carries a run of
bytes of one arena, wherever tensors begin and end in it. Arenas form *groups*, one for each call of the receiver's callback.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from xpu_shim.core.log import logger
from xpu_shim.weights import call, segment, settings, tensors, verify, wire
from xpu_shim.weights.channel import Channel
from xpu_shim.weights.errors import Interrupted, PeerFailed, WeightSyncError
from xpu_shim.weights.legacy import LegacySender, Offer
from xpu_shim.weights.rendezvous import SenderSide
from xpu_shim.weights.staging import Staging
from xpu_shim.weights.ties import Ties
from xpu_shim.weights.wire import Kind

_log = logger("xpu_shim.weights")

#: Slots in a segment: one being filled, one being read, two between so that neither end waits for the other's rhythm.
SLOTS = 4

#: Usual size of an arena, in bytes.
ARENA = 32 << 20

#: Largest tensor that is copied on the event loop itself instead of in the thread; a few tens of microseconds.
INLINE = 256 << 10

#: Names that turned out to be the first of tied weights, by address: the receiver is asked to keep them next time.
_known_ties: dict[str, set[str]] = {}


class Sender:
    """One sync. All methods but `interrupt` and `put_now` may wait, each with a limit; run them in one thread.

    Args:
        endpoint: verl's address, "ipc://<path>".
        bucket_bytes: verl's bucket size.
        options: see `settings`.
    """

    def __init__(self, endpoint: str, bucket_bytes: int, options: settings.Settings) -> None:
        self._endpoint, self._options = endpoint, options
        self._bucket_bytes = max(int(bucket_bytes), segment.SMALLEST)
        self._started = time.monotonic()
        self._channel: Channel | None = None
        self._meeting: SenderSide | None = None
        self._legacy: LegacySender | None = None
        self._offer: Offer | None = None
        self._segment: segment.Segment | None = None
        self._slots: list[torch.Tensor] = []
        self._free: deque[int] = deque()
        self._stopped = False
        self._stagings: dict[torch.device, Staging] = {}
        self._ties = Ties()
        self._keep = _known_ties.setdefault(endpoint, set())
        self._kept: set[str] = set()
        # Where the stream is.
        self._group_limit = self._arena_limit = 0
        self._group_bytes = self._group_first = 0
        self._arena, self._arena_size, self._arena_used = -1, 0, 0
        self._slot: int | None = None
        self._slot_used = 0
        self._data: dict[str, Any] = {}
        self._names: list[str] = []
        #: Checksums by name, if they are wanted.
        self._sums: dict[str, str] | None = {} if options.verify else None
        #: For messages: the tensor in hand and the bytes before it.
        self.tensor, self.offset = "", 0
        self.buckets = 0

    def open(self) -> None:
        """Meet the receiver.

        Raises:
            WeightSyncError: nobody came in time, or who came went away.
        """
        self._offer = Offer(self._bucket_bytes)
        self._meeting = SenderSide(self._endpoint, self._offer.message, self._bucket_bytes, self._options.timeout)
        if self._stopped:
            raise Interrupted("weight sync: the sender was told to stop before it began")
        # Before anybody comes, so that a receiver that is still on its way need not wait for the kernel's zeroes.
        wanted = min(self._options.segment_bytes, self._bucket_bytes)
        self._segment = segment.POOL.take(wanted, self._options.backend)
        met = self._meeting.meet()
        if met is None:
            _log.warning(
                "weight sync: the receiver at %s runs without xpu-shim; using verl's own protocol, which is slower and "
                "cannot report its errors. Install xpu-shim in the rollout's environment.",
                self._endpoint,
            )
            if self._segment is not None:
                segment.POOL.give_back(self._segment)
                self._segment = None
            self._legacy = LegacySender(self._meeting, self._offer)
            return
        self._offer.close()
        self._meeting.keep_the_door()
        self._channel, hello = met
        self._group_limit = max(1, int(hello["group_bytes"]))
        self._arena_limit = min(ARENA, self._group_limit)
        if self._segment is not None:
            slot_bytes = self._segment.size // SLOTS // tensors.ALIGNMENT * tensors.ALIGNMENT
            memory = self._segment.bytes
        else:
            slot_bytes = min(1 << 20, segment.SMALLEST * SLOTS)
            memory = torch.empty(slot_bytes * SLOTS, dtype=torch.uint8)
        self._slots = [memory[i * slot_bytes : (i + 1) * slot_bytes] for i in range(SLOTS)]
        self._free.extend(range(SLOTS))
        body = {"size": slot_bytes * SLOTS, "slots": SLOTS, "shared": self._segment is not None}
        if self._segment is not None:
            body["size"] = self._segment.size
        self._channel.send(
            Kind.SEGMENT, body, descriptor=self._segment.descriptor if self._segment is not None else None
        )

    def put(self, name: str, tensor: torch.Tensor) -> None:
        """Send one tensor: on return all its bytes are copied, and the caller may overwrite it.

        Raises:
            UnsendableTensor: see `tensors.prepare`.
            WeightSyncError: the receiver failed, died or is silent; raised at the first tensor after it.
        """
        self.tensor = name
        tensor = tensors.prepare(name, tensor)
        if self._sums is not None:
            self._sums[name] = verify.checksum(tensor)
        if self._legacy is not None:
            self._legacy.put(name, tensor)
            self._names.append(name)
            self.offset += tensor.nbytes
            return
        self._hear()
        index = len(self._names)
        self._names.append(name)
        same = self._ties.find(index, tensor)
        if same is not None:
            self._keep.add(self._names[same])
            if same >= self._group_first or self._names[same] in self._kept:
                self._entry([name, "", same, 0])
                return
        self._place(tensor.nbytes)
        keep = name in self._keep
        self._entry(
            [name, tensors.dtype_name(tensor.dtype), list(tensor.shape), self._arena_used, *([1] if keep else [])]
        )
        if keep:
            self._kept.add(name)
        for part in tensors.pieces(tensor, self._room()) if tensor.nbytes else ():
            self._copy(part)
        self.offset += tensor.nbytes

    def put_now(self, name: str, tensor: torch.Tensor) -> bool:
        """`put` a small tensor of the host for which there is room, without waiting; False if it is not such a one."""
        if (
            self._channel is None
            or not isinstance(tensor, torch.Tensor)
            or tensor.layout is not torch.strided
            or tensor.device.type != "cpu"
            or tensor.nbytes > INLINE
            or self._slot is None
            or self._slot_used + tensor.nbytes + 2 * tensors.ALIGNMENT > len(self._slots[self._slot])
            or self._arena_used + tensor.nbytes + 2 * tensors.ALIGNMENT > self._arena_size
        ):
            return False
        self.put(name, tensor)
        return True

    def finish(self) -> None:
        """Send what is left and wait until the receiver has loaded everything.

        Raises:
            WeightSyncError: as `put`.
        """
        self.tensor = ""
        if self._legacy is not None:
            self._legacy.flush(last=True)
            self.buckets = self._legacy.buckets
            self._report(self._legacy.allocated, "verl's protocol")
            return
        assert self._channel is not None
        self._publish()
        # First, so that a receiver of the next sync cannot meet this one's end.
        self._leave()
        end: dict[str, Any] = {"tensors": len(self._names), "bytes": self.offset}
        if self._sums is not None:
            end["sums"] = self._sums
        self._channel.send(Kind.END, end)
        while (frame := self._channel.receive("the receiver to load the last tensors")).kind is not Kind.DONE:
            self._handle(frame)
        if frame.body["tensors"] != len(self._names):
            raise WeightSyncError(f"weight sync: {len(self._names)} tensors sent, {frame.body['tensors']} loaded")
        if self._sums is not None:
            self._verified(frame.body.get("verified"))
        if self._segment is not None:
            self._report(self._segment.size, self._segment.kind)
            segment.POOL.give_back(self._segment)
            self._segment = None
        else:
            self._report(0, "socket")

    def interrupt(self) -> None:
        """End whatever this sender waits for with `Interrupted`. Callable from any thread."""
        self._stopped = True
        for waiting in (self._meeting, self._channel):
            if waiting is not None:
                waiting.interrupt()

    def doing(self) -> str:
        """What this sender is at, for a message: "waiting for …", "sending …"."""
        if self._channel is None and self._legacy is None:
            return f"waiting for a receiver at {self._endpoint}"
        if not self.tensor:
            return "waiting for the receiver to load the last tensors"
        return f"sending {self.tensor!r} at byte offset {self.offset}"

    def report(self) -> WeightSyncError | None:
        """What the receiver has said of its end, if it has said so and nobody has read it."""
        try:
            while self._channel is not None and self._channel.poll() is not None:
                pass
        except PeerFailed as reported:
            return reported
        except WeightSyncError:
            pass
        return None

    def close(self, error: BaseException | None = None) -> None:
        """Tell the receiver of `error`, if it is still there, and give everything back."""
        if self._channel is not None:
            if error is not None:
                with contextlib.suppress(WeightSyncError):
                    self._channel.send(Kind.ERROR, wire.report(error, self.tensor, self.offset))
            self._channel.close()
            self._channel = None
        if self._legacy is not None:
            self._legacy.close()
            self._legacy = None
        self._leave()
        if self._offer is not None:
            self._offer.close()
        self._slots = []
        if self._segment is not None:  # a receiver may still read it, so no later sync may write to it
            self._segment.close()
            self._segment = None

    # The stream.

    def _place(self, nbytes: int) -> None:
        """Move to the arena position where a tensor of `nbytes` begins, opening an arena if it does not fit."""
        position = -(-self._arena_used // tensors.ALIGNMENT) * tensors.ALIGNMENT
        if self._arena >= 0 and position + nbytes <= self._arena_size:
            if self._slot is not None:
                gap = position - self._arena_used
                if self._slot_used + gap >= len(self._slots[self._slot]):
                    self._publish()
                else:
                    self._slot_used += gap
            self._arena_used = position
            return
        self._publish()
        size = max(self._arena_limit, nbytes)
        ends_group = self._group_bytes > 0 and self._group_bytes + size > self._group_limit
        if ends_group:
            self._group_bytes, self._group_first = 0, len(self._names) - 1
        self._group_bytes += size
        self._arena, self._arena_size, self._arena_used = self._arena + 1, size, 0
        self._data = {"new": size, **({"group": 1} if ends_group else {})}

    def _entry(self, entry: list) -> None:
        """Note that a tensor begins here: [name, dtype, shape, arena offset, keep] or [name, "", number, 0] if tied."""
        self._data.setdefault("tensors", []).append(entry)

    def _room(self) -> Iterator[int]:
        """How much fits into the slot in hand, taking a new one when it is full."""
        while True:
            if self._slot is not None and self._slot_used >= len(self._slots[self._slot]):
                self._publish()
            if self._slot is None:
                self._take_slot()
            assert self._slot is not None
            yield len(self._slots[self._slot]) - self._slot_used

    def _take_slot(self) -> None:
        assert self._channel is not None
        if self._stopped:
            raise Interrupted("weight sync: the sender was told to stop")
        while not self._free:
            self._handle(self._channel.receive(f"a free slot, to send {self.tensor!r} at byte {self.offset}"))
        self._slot, self._slot_used = self._free.popleft(), 0
        self._data["start"] = self._arena_used

    def _copy(self, part: torch.Tensor) -> None:
        assert self._slot is not None
        target = self._slots[self._slot][self._slot_used : self._slot_used + part.nbytes]
        if part.dtype is not torch.uint8 or part.dim() != 1:
            tensors.write(part, target)
        elif part.device.type == "cpu":
            tensors.copy(part, target)
        else:
            self._staging(part.device).to_host(part, target)
        self._slot_used += part.nbytes
        self._arena_used += part.nbytes

    def _publish(self) -> None:
        """Hand the slot in hand, and what begins in it, to the receiver."""
        if self._slot is None and not self._data:
            return
        assert self._channel is not None
        if self._slot is None:
            self._channel.send(Kind.DATA, {"arena": self._arena, "slot": -1, "length": 0, "start": 0, **self._data})
        else:
            body = {"arena": self._arena, "slot": self._slot, "length": self._slot_used, **self._data}
            payload = None
            if self._segment is None:
                payload = memoryview(self._slots[self._slot][: self._slot_used].numpy())  # type: ignore[arg-type]
            self._channel.send(Kind.DATA, body, payload)
            self.buckets += 1
        self._slot, self._slot_used, self._data = None, 0, {}

    def _hear(self) -> None:
        """Take in what the receiver said meanwhile; raises what it reports."""
        assert self._channel is not None
        if self._stopped:
            raise Interrupted("weight sync: the sender was told to stop")
        while (frame := self._channel.poll()) is not None:
            self._handle(frame)

    def _handle(self, frame: wire.Frame) -> None:
        if frame.kind is Kind.FREE:
            self._free.append(frame.body["slot"])

    def _leave(self) -> None:
        if self._meeting is not None:
            self._meeting.close()
            self._meeting = None

    def _staging(self, device: torch.device) -> Staging:
        if device not in self._stagings:
            self._stagings[device] = Staging(device, self._options.pinned)
        return self._stagings[device]

    def _verified(self, result: dict[str, Any] | None) -> None:
        """Note what the receiver found; it has raised if anything differs."""
        if result is None:
            _log.warning(
                "weight sync: XPU_SHIM_WEIGHT_SYNC_VERIFY=1 is set here but not in the rollout's environment (or its "
                "xpu-shim does not know it): nothing was compared."
            )
            return
        verify.note("sender", {**result, "digest": verify.digest(self._sums or {})})
        _log.info(
            "weight sync: %d tensors equal at both ends, %d of them compared with the model that is served",
            result["tensors"],
            result["equal_in_model"],
        )

    def _report(self, shared: int, how: str) -> None:
        seconds = time.monotonic() - self._started
        _log.info(
            "weight sync: %d bytes, %d tensors, %.3f s, %.2f GiB/s, %d buckets, %d KiB shared memory (%s)",
            self.offset,
            len(self._names),
            seconds,
            self.offset / seconds / 2**30,
            self.buckets,
            shared >> 10,
            how,
        )


async def send_weights(endpoint: str, bucket_bytes: int, weights: AsyncIterator[tuple[str, torch.Tensor]]) -> None:
    """Send all weights to the receiver at `endpoint`. Waits and copies are done in a thread: the loop is never blocked.

    A tensor's bytes are copied before the next one is asked for, so `weights` may refill its buffers.

    Args:
        endpoint: verl's address, "ipc://<path>".
        bucket_bytes: verl's bucket size.
        weights: yields (name, tensor) pairs.

    Raises:
        WeightSyncError: see its subclasses; `PeerFailed` also if the rollout's call of this sync failed (see `call`).
            Whatever `weights` raises is reported to the receiver and passed on.
    """
    sender = Sender(endpoint, bucket_bytes, settings.read())
    watch = call.Watch(call.take(), sender)
    loop = asyncio.get_running_loop()
    thread = ThreadPoolExecutor(1, thread_name_prefix="xpu-shim-weights")

    async def run(function: Any, *arguments: Any) -> None:
        await loop.run_in_executor(thread, function, *arguments)

    try:
        await run(sender.open)
        breath = time.monotonic()
        async for name, tensor in weights:
            if not sender.put_now(name, tensor):
                await run(_put, sender, _stream_of(tensor), name, tensor)
            elif time.monotonic() - breath > 0.01:
                await asyncio.sleep(0)
                breath = time.monotonic()
            del tensor
        await run(sender.finish)
        await run(sender.close)
    except BaseException as error:
        sender.interrupt()  # if the thread still works for us, it is because this task was cancelled
        instead = None
        if isinstance(error, Interrupted) and watch.error is not None:
            failed = watch.failure()
            instead = await asyncio.shield(loop.run_in_executor(thread, sender.report)) or failed
        await asyncio.shield(loop.run_in_executor(thread, sender.close, instead or error))
        if instead is not None:
            raise instead from watch.error
        raise
    finally:
        watch.over()
        thread.shutdown(wait=False)


def _put(sender: Sender, stream: contextlib.AbstractContextManager, name: str, tensor: torch.Tensor) -> None:
    with stream:
        sender.put(name, tensor)


def _stream_of(tensor: torch.Tensor) -> contextlib.AbstractContextManager:
    """The calling thread's current stream on the tensor's device, for another thread to enter: streams are chosen per
    thread, and the copy has to come after the work that computes the tensor."""
    if not isinstance(tensor, torch.Tensor) or tensor.device.type in ("cpu", "meta"):
        return contextlib.nullcontext()
    module = torch.get_device_module(tensor.device.type)
    return module.stream(module.current_stream(tensor.device))
