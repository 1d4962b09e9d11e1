"""Where sender and receiver meet: verl's ZeroMQ address, and what each can tell of the other there.

verl's sender speaks first: a pickled dict with the name and size of a shared memory segment; its receiver answers with an
empty message. The shim's sender says the same with one more key, which names a private socket (see `channel`). A receiver
with the shim connects there; one without it ignores the key and gives the empty answer, and is then served in verl's own
protocol (`legacy`). The other way round, a receiver with the shim finds no such key and speaks verl's protocol too.

The monitor of each ZeroMQ socket reports when the other end goes away.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import pickle
import secrets
import select
import socket
import threading
import time
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from xpu_shim.core import leftovers
from xpu_shim.core.log import logger
from xpu_shim.weights import partners, stale
from xpu_shim.weights.channel import Channel, peer_pid
from xpu_shim.weights.errors import Interrupted, PeerDied, PeerRefused, PeerSilent, WeightSyncError
from xpu_shim.weights.wire import PROTOCOL, Kind

_log = logger("xpu_shim.weights")

#: The key in verl's first message.
KEY = "xpu_shim"

#: Seconds a receiver gives a sender that went away to come back: an old one closing, a new one binding.
GRACE = 1.5

_TICK = 0.25

#: Seconds. ZeroMQ tells of a peer's leaving a moment before its socket stops sending to it, and a message sent in between is
#: lost without a word. So nothing is sent to whoever else is here until this long after somebody left.
_SETTLED = 0.1

#: Seconds `close` gives a receiver that is to be refused to hear of it.
_LAST_WORD = 1.0


class _Watched:
    """A ZeroMQ socket with a monitor that counts peers coming and going."""

    def __init__(self, kind: int, linger: int = 0) -> None:
        self.socket: zmq.Socket = zmq.Context.instance().socket(kind)
        self.socket.linger = linger  # type: ignore[assignment]
        events = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
        events |= zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        self.monitor: zmq.Socket = self.socket.get_monitor_socket(events)
        self.came = self.went = 0
        self._last_left = 0.0
        self.listener_closed = False
        self.pids: list[int] = []

    def update(self) -> None:
        """Take in what the monitor has to say; never waits."""
        while self.monitor.poll(0):
            event = recv_monitor_message(self.monitor)
            if event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.came += 1
            elif event["event"] == zmq.EVENT_DISCONNECTED:
                self.went += 1
                self._last_left = time.monotonic()
            elif event["event"] == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                self.went -= 1  # somebody only looked whether we listen; its leaving is reported too, and it never came
            elif event["event"] == zmq.EVENT_CLOSED:
                self.listener_closed = True
            elif event["event"] == zmq.EVENT_ACCEPTED:
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(event["value"])) as connection:
                    self.pids.append(peer_pid(connection))

    @property
    def here(self) -> int:
        """How many peers are connected."""
        return self.came - self.went

    @property
    def settled(self) -> bool:
        """Whether what is sent now goes to somebody who is still here (see `_SETTLED`)."""
        return time.monotonic() - self._last_left > _SETTLED

    def poll(self, flags: int, *others: Any, timeout: float = _TICK) -> list[Any]:
        """Wait for the socket (`flags`), the monitor or one of `others` to be readable; what is."""
        poller = zmq.Poller()
        if flags:
            poller.register(self.socket, flags)
        poller.register(self.monitor, zmq.POLLIN)
        for other in others:
            poller.register(other, zmq.POLLIN)
        return [item for item, _ in poller.poll(int(timeout * 1000))]

    def close(self) -> None:
        if not self.socket.closed:
            self.socket.disable_monitor()
            self.monitor.close(linger=0)
            self.socket.close()


class SenderSide:
    """The sender's end: binds verl's address, recognises who comes, turns away who comes too much.

    Args:
        endpoint: verl's address, "ipc://<path>".
        offer: name and size of the segment a receiver without the shim would use.
        bucket_bytes: verl's bucket size.
        timeout: seconds to wait for a receiver.
    """

    def __init__(self, endpoint: str, offer: dict[str, Any], bucket_bytes: int, timeout: float) -> None:
        self._endpoint, self._timeout = endpoint, timeout
        self._path = endpoint.removeprefix("ipc://") if endpoint.startswith("ipc://") else None
        self._token = secrets.token_hex(16)
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake_lock = threading.Lock()
        self._watched: _Watched | None = None
        self._refused = 0
        self._door: threading.Thread | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # The abstract namespace: no file to clean up.
            self._listener.bind(f"\0xpu-shim-weights-{os.getpid()}-{secrets.token_hex(8)}")
            self._listener.listen(4)
            self._listener.setblocking(False)
            self._first = offer | {
                KEY: {
                    "protocols": [PROTOCOL],
                    "address": self._listener.getsockname()[1:].decode(),
                    "token": self._token,
                    "pid": os.getpid(),
                    "bucket_bytes": bucket_bytes,
                }
            }
            # A dealer speaks with verl's REP sockets if each message is preceded by an empty part; it need not take turns.
            self._watched = _Watched(zmq.DEALER)
            self._bind()
        except BaseException:
            self.close()
            raise

    def meet(self) -> tuple[Channel, dict[str, Any]] | None:
        """Wait for a receiver.

        Returns:
            The private channel and the receiver's HELLO, or None if it is one without the shim.

        Raises:
            PeerSilent: none came, or one came and said nothing.
            PeerDied: the one that came went away.
            Interrupted: `interrupt` was called.
        """
        assert self._watched is not None
        watched, told = self._watched, 0
        earlier = partners.Watch("sender", self._endpoint)
        deadline = time.monotonic() + self._timeout
        while True:
            watched.poll(
                zmq.POLLIN if told else zmq.POLLIN | zmq.POLLOUT, self._listener, self._wake_read, timeout=_TICK
            )
            watched.update()
            if _readable(self._wake_read):
                raise Interrupted("weight sync: the sender was told to stop while it waited for a receiver")
            met = self._accept()
            if met is not None:
                partners.remember("sender", self._endpoint, met[0].peer_pid)
                return met
            if watched.socket.poll(0, zmq.POLLIN):
                watched.socket.recv_multipart()
                return None
            if told <= watched.went and watched.settled and watched.socket.poll(0, zmq.POLLOUT):
                # Nobody was told yet, or who was told has gone and somebody else is here.
                with contextlib.suppress(zmq.Again):
                    watched.socket.send_multipart([b"", pickle.dumps(self._first)], zmq.NOBLOCK)
                    told += 1
                    deadline = time.monotonic() + self._timeout
            elif told and watched.here <= 0:
                raise PeerDied(
                    f"weight sync: the receiver {_pids(watched.pids)} went away before it took anything "
                    f"(address {self._endpoint}); its own log has the cause"
                )
            elif not told and (pid := earlier.gone()):
                raise PeerDied(
                    f"weight sync: the receiver of the last sync at {self._endpoint} (pid {pid}) died, and no other has come "
                    f"to the sender (pid {os.getpid()}). Its own log, or `dmesg` after an out-of-memory kill, has the cause."
                )
            if time.monotonic() > deadline:
                raise PeerSilent(self._nobody(told))

    def keep_the_door(self) -> None:
        """After `meet` has given a channel: from now on a thread refuses other receivers as they come. Until `close`."""
        self._door = threading.Thread(target=self._keep_the_door, name="xpu-shim-weights-door", daemon=True)
        self._door.start()

    def _keep_the_door(self) -> None:
        watched = self._watched
        while watched is not None:  # the socket is this thread's until `close` has joined it
            self._refuse_others(watched)
            # Who is to be refused is told until it leaves; else only somebody's coming or going is news.
            watched.poll(0, self._wake_read, timeout=_SETTLED if watched.went and watched.here > 0 else 60.0)
            if _readable(self._wake_read):
                return

    def _refuse_others(self, watched: _Watched) -> None:
        """Tell receivers that came after the first one that they are not served; never waits."""
        watched.update()
        # The first to leave is the one being served: it has gone over to the private channel. Nobody acknowledges a
        # refusal but by leaving, so it is said again until then; a receiver takes the first it hears and no other.
        if not (watched.went and watched.here > 0 and watched.settled):
            return
        refusal = {
            "name": "weight-sync-refused-another-receiver-is-being-served",
            "size": 0,
            KEY: {"refused": f"pid {os.getpid()} is already serving another receiver"},
        }
        for _ in range(watched.here):  # the socket sends to each in turn
            try:
                watched.socket.send_multipart([b"", pickle.dumps(refusal)], zmq.NOBLOCK)
            except zmq.Again:
                return
        while self._refused < watched.came - 1:
            _log.warning("weight sync: a second receiver at %s was refused", self._endpoint)
            self._refused += 1

    def _last_word(self, watched: _Watched) -> None:
        """Refuse receivers that are still here, and give them `_LAST_WORD` to hear it."""
        limit = time.monotonic() + _LAST_WORD
        self._refuse_others(watched)
        while watched.came > 1 and watched.here > 0 and time.monotonic() < limit:
            watched.poll(0, timeout=_SETTLED)
            self._refuse_others(watched)

    def interrupt(self) -> None:
        """End `meet` with `Interrupted`. Callable from any thread."""
        with self._wake_lock, contextlib.suppress(OSError):
            os.write(self._wake_write, b"x")

    # What `legacy` needs: send one message, wait for its empty answer.
    def ask(self, message: Any, waiting_for: str) -> None:
        """Send a pickled message in verl's protocol and wait for the answer.

        Raises:
            PeerDied, PeerSilent, Interrupted: no answer.
        """
        assert self._watched is not None
        watched = self._watched
        watched.socket.send_multipart([b"", pickle.dumps(message)], zmq.NOBLOCK)
        deadline = time.monotonic() + self._timeout
        while True:
            watched.poll(zmq.POLLIN, self._wake_read)
            watched.update()
            if _readable(self._wake_read):
                raise Interrupted(f"weight sync: the sender was told to stop while it waited for {waiting_for}")
            if watched.socket.poll(0, zmq.POLLIN):
                watched.socket.recv_multipart()
                return
            if watched.here <= 0:
                raise PeerDied(
                    f"weight sync: the receiver {_pids(watched.pids)}, which runs without xpu-shim, went away while the "
                    f"sender waited for {waiting_for}. It cannot say why; its own log has the error."
                )
            if time.monotonic() > deadline:
                raise PeerSilent(
                    f"weight sync: the sender (pid {os.getpid()}) waited {self._timeout:g} s for {waiting_for}. The "
                    f"receiver {_pids(watched.pids)} runs without xpu-shim and cannot say what went wrong: see its own "
                    "log, or install xpu-shim there. XPU_SHIM_WEIGHT_SYNC_TIMEOUT (seconds) sets the limit."
                )

    def close(self) -> None:
        """Stop listening and remove the socket file. Returns once ZeroMQ has let go of it, so that the next sync's
        file, of the same name, is not removed by this one's delayed close."""
        self._listener.close()
        if self._door is not None:
            self.interrupt()
            self._door.join()
            self._door = None
            if self._watched is not None:
                self._last_word(self._watched)
        watched, self._watched = self._watched, None
        if watched is not None:
            with contextlib.suppress(zmq.ZMQError):
                watched.socket.unbind(self._endpoint)
                limit = time.monotonic() + 2.0
                while not watched.listener_closed and time.monotonic() < limit:
                    watched.poll(0, timeout=0.05)
                    watched.update()
            watched.close()
            if self._path is not None:
                with contextlib.suppress(OSError):
                    os.unlink(self._path)
                leftovers.leave_alone(self._path)
        with self._wake_lock:  # a closed descriptor's number may be somebody else's file by now
            for descriptor in (self._wake_read, self._wake_write):
                if descriptor >= 0:
                    os.close(descriptor)
            self._wake_read = self._wake_write = -1

    def _bind(self) -> None:
        assert self._watched is not None
        if self._path is not None:
            stale.remove_dead_sockets(self._endpoint)
        try:
            self._watched.socket.bind(self._endpoint)
        except zmq.ZMQError as error:
            raise WeightSyncError(f"weight sync: cannot listen at {self._endpoint}: {error}") from error
        if self._path is not None:  # every run has the same names for them
            leftovers.remove_after_death(self._path, shared_name=True)

    def _accept(self) -> tuple[Channel, dict[str, Any]] | None:
        """The channel to a receiver that connected to the private socket and knows the token."""
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, OSError):
            return None
        channel = Channel(connection, "sender", "receiver", self._timeout)
        try:
            hello = channel.receive("the receiver's first frame")
            if hello.kind is not Kind.HELLO or not hmac.compare_digest(str(hello.body.get("token")), self._token):
                raise WeightSyncError("weight sync: a stranger connected to the private socket")
        except BaseException:
            channel.close()
            raise
        return channel, hello.body

    def _nobody(self, told: int) -> str:
        if told:
            return (
                f"weight sync: the sender (pid {os.getpid()}) waited {self._timeout:g} s for the receiver "
                f"{_pids(self._watched.pids if self._watched else [])} at {self._endpoint} to answer"
            )
        return (
            f"weight sync: the sender (pid {os.getpid()}) waited {self._timeout:g} s for a receiver at {self._endpoint} "
            "and none came. Is the rollout engine alive, and does it use the same address (replica, rank, Ray job id)? "
            "XPU_SHIM_WEIGHT_SYNC_TIMEOUT (seconds) sets the limit."
        )


class ReceiverSide:
    """The receiver's end: connects to verl's address and hears what the sender says first.

    Args:
        endpoint: verl's address.
        timeout: seconds to wait for a sender.
    """

    def __init__(self, endpoint: str, timeout: float) -> None:
        self._endpoint, self.timeout = endpoint, timeout
        self._path = endpoint.removeprefix("ipc://") if endpoint.startswith("ipc://") else None
        self._watched = _Watched(zmq.REP)
        self._watched.socket.reconnect_ivl = 10  # ms; the sender often binds a moment later
        self._watched.socket.connect(endpoint)

    def hear(self, waiting_for: str = "the sender's first message") -> Any:
        """The next message of the sender, unpickled.

        Raises:
            PeerDied, PeerSilent: none came.
        """
        watched = self._watched
        earlier = partners.Watch("receiver", self._endpoint)
        deadline = time.monotonic() + self.timeout
        alone_since: float | None = None
        while True:
            watched.poll(zmq.POLLIN)
            watched.update()
            if watched.socket.poll(0, zmq.POLLIN):
                return pickle.loads(watched.socket.recv())
            now = time.monotonic()
            alone = watched.came > 0 and watched.went >= watched.came
            alone_since = (alone_since or now) if alone else None
            if alone_since is not None and now - alone_since > GRACE:
                self.tidy()
                raise PeerDied(
                    f"weight sync: the sender at {self._endpoint} went away while the receiver (pid {os.getpid()}) waited "
                    f"for {waiting_for}"
                )
            if not watched.came and (pid := earlier.gone()):
                self.tidy()
                raise PeerDied(
                    f"weight sync: the sender of the last sync at {self._endpoint} (pid {pid}) died, and no other has come "
                    f"while the receiver (pid {os.getpid()}) waited for {waiting_for}"
                )
            if now > deadline:
                state = "is connected but says nothing" if watched.came > watched.went else "cannot be reached"
                raise PeerSilent(
                    f"weight sync: the receiver (pid {os.getpid()}) waited {self.timeout:g} s for {waiting_for} at "
                    f"{self._endpoint}; the sender {state}. XPU_SHIM_WEIGHT_SYNC_TIMEOUT (seconds) sets the limit."
                )

    def answer(self) -> None:
        """The empty answer of verl's protocol."""
        self._watched.socket.send(b"")

    def answer_last(self) -> None:
        """The last answer: returns once the sender has it and has closed, or after 2 s, so that a process that exits
        at once cannot take it along."""
        self.answer()
        limit = time.monotonic() + 2.0
        while self._watched.went < self._watched.came and time.monotonic() < limit:
            self._watched.poll(0, timeout=0.05)
            self._watched.update()

    def open_channel(self, first: Any) -> Channel | None:
        """The private channel the first message names; None if the sender has no shim, or none that fits.

        Raises:
            PeerRefused: the sender serves somebody else.
        """
        said = first.get(KEY) if isinstance(first, dict) else None
        if not isinstance(said, dict):
            return None
        if "refused" in said:
            raise PeerRefused(
                f"weight sync: refused at {self._endpoint}: {said['refused']}. Two rollout processes use one address; is "
                "one of them left over from an earlier run?"
            )
        if PROTOCOL not in said.get("protocols", ()):
            _log.warning("weight sync: the sender's xpu-shim speaks protocols %s, not %d", said["protocols"], PROTOCOL)
            return None
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect("\0" + said["address"])
        except OSError as error:  # another network namespace
            connection.close()
            _log.warning("weight sync: private socket not reachable (%s); using verl's own protocol", error)
            return None
        channel = Channel(connection, "receiver", "sender", self.timeout)
        partners.remember("receiver", self._endpoint, channel.peer_pid)
        return channel

    def tidy(self) -> None:
        """Remove the socket file if its sender is dead and could not."""
        if self._path is not None:
            stale.remove_socket_if_dead(self._path)

    def close(self) -> None:
        """Leave the address."""
        self._watched.close()


def _readable(descriptor: int) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(0))


def _pids(pids: list[int]) -> str:
    return f"(pid {', '.join(map(str, pids))})" if any(pids) else ""
