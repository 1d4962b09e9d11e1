"""The private connection between one sender and one receiver: bounded waits, and a dead peer is noticed at once.

A plain Unix stream socket, not ZeroMQ: the kernel reports the end of the other process as end of file without delay, it
tells the peer's pid, and it can carry a file descriptor, so that shared memory needs no name anybody must clean up.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import threading
import time
from collections import deque

from xpu_shim.weights import wire
from xpu_shim.weights.errors import Interrupted, PeerDied, PeerFailed, PeerSilent, WeightSyncError
from xpu_shim.weights.wire import Frame, Kind

#: Longest sleep in one poll, in seconds; only a safety net, all events wake it.
_TICK = 0.5

#: Bytes read at once, and room for the descriptors that may come with them.
_READ = 64 << 10
_DESCRIPTORS = socket.CMSG_SPACE(4 * struct.calcsize("i"))


class Channel:
    """One end. Receiving and sending may be done by different threads; each by one thread at a time.

    Args:
        connection: a connected Unix stream socket; owned from now on.
        me, peer: "sender" and "receiver" or the reverse, for messages.
        timeout: seconds without progress after which a wait ends.
    """

    def __init__(self, connection: socket.socket, me: str, peer: str, timeout: float) -> None:
        connection.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connection.setsockopt(socket.SOL_SOCKET, option, 1 << 20)
        self.me, self.peer, self.timeout = me, peer, timeout
        self.peer_pid = peer_pid(connection)
        self._socket = connection
        self._buffer = bytearray()
        self._descriptors: deque[int] = deque()
        self._ended = False
        self._receiving = threading.Lock()
        self._sending = threading.Lock()
        self._wake_lock = threading.Lock()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # A child forked by the peer can keep the socket open after the peer is dead: then only the pid tells.
        self._pidfd = _pidfd(self.peer_pid)

    def send(self, kind: Kind, body: dict, payload: memoryview | None = None, descriptor: int | None = None) -> None:
        """Send one frame, all of it.

        Raises:
            PeerDied, PeerSilent, Interrupted: the frame could not be sent.
        """
        head = wire.head(kind, body, len(payload) if payload is not None else 0)
        waiting_for = f"the {self.peer} to take a {kind.name} frame"
        with self._sending:
            sent = 0
            if descriptor is None:  # as nearly always: one call
                try:
                    sent = self._socket.send(head)
                except BlockingIOError:
                    pass
                except OSError as error:
                    raise self._gone(waiting_for, error) from error
                if sent == len(head) and payload is None:
                    return
            parts = deque(part for part in (memoryview(head)[sent:], payload) if part is not None and len(part))
            deadline = time.monotonic() + self.timeout
            while parts:
                try:
                    ancillary = _ancillary(descriptor)
                    sent = self._socket.sendmsg([parts[0]], ancillary)
                except BlockingIOError:
                    self._wait(select.POLLOUT, deadline, waiting_for)
                    continue
                except OSError as error:
                    raise self._gone(waiting_for, error) from error
                descriptor = None
                parts[0] = parts[0][sent:]
                if not parts[0]:
                    parts.popleft()
                deadline = time.monotonic() + self.timeout

    def receive(self, waiting_for: str) -> Frame:
        """Wait for the next frame; an ERROR frame is raised.

        Args:
            waiting_for: what this end waits for, to complete "waited for …".

        Raises:
            PeerFailed: the peer reported its own failure.
            PeerDied: the peer is gone and all it said before was read.
            PeerSilent: nothing came for `timeout` seconds.
            Interrupted: `interrupt` was called.
        """
        deadline = time.monotonic() + self.timeout
        with self._receiving:
            while True:
                frame = self._next()
                if frame is not None:
                    return frame
                if self._pump():
                    deadline = time.monotonic() + self.timeout
                    continue
                if self._ended:
                    raise self._gone(waiting_for)
                self._wait(select.POLLIN, deadline, waiting_for)

    def poll(self) -> Frame | None:
        """The next frame if it has arrived; never waits. Raises as `receive` does."""
        with self._receiving:
            frame = self._next()
            if frame is None and self._pump():
                frame = self._next()
            if frame is None and self._ended:
                raise self._gone("nothing yet")
            return frame

    def interrupt(self) -> None:
        """End the waits of this end, now and in future, with `Interrupted`. Callable from any thread."""
        with self._wake_lock, contextlib.suppress(OSError):  # full (interrupted already) or closed
            os.write(self._wake_write, b"x")

    def close(self) -> None:
        """Close the connection and every descriptor that was received and not taken."""
        self._socket.close()
        with self._wake_lock:  # a closed descriptor's number may be somebody else's file by now
            for descriptor in (self._wake_read, self._wake_write, self._pidfd, *self._descriptors):
                if descriptor is not None and descriptor >= 0:
                    os.close(descriptor)
            self._descriptors.clear()
            self._pidfd = None
            self._wake_read = self._wake_write = -1

    def _next(self) -> Frame | None:
        try:
            frame = wire.parse(self._buffer)
        except ValueError as error:
            raise WeightSyncError(f"the {self.peer} (pid {self.peer_pid}) sent something else: {error}") from error
        if frame is None:
            return None
        if frame.kind is Kind.ERROR:
            raise PeerFailed.from_report(self._who(), frame.body)
        if frame.kind is Kind.SEGMENT and self._descriptors:
            frame.descriptors.append(self._descriptors.popleft())
        return frame

    def _pump(self) -> bool:
        """Read what is there; whether anything was."""
        progress = False
        while not self._ended:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(_READ, _DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                break
            except OSError:
                data, ancillary = b"", []
            for level, kind, content in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    size = struct.calcsize("i")
                    whole = content[: len(content) // size * size]
                    self._descriptors.extend(number for (number,) in struct.iter_unpack("i", whole))
            if not data:
                self._ended = True
                break
            self._buffer += data
            progress = True
            if len(data) < _READ:
                break
        return progress

    def _wait(self, events: int, deadline: float, waiting_for: str) -> None:
        """Sleep until the socket is ready for `events`; an end of the peer is left for the caller's next attempt."""
        poller = select.poll()
        # While this end sends, the peer may be blocked until somebody reads what it says.
        poller.register(self._socket, events | select.POLLIN)
        poller.register(self._wake_read, select.POLLIN)
        if self._pidfd is not None:
            poller.register(self._pidfd, select.POLLIN)
        now = time.monotonic()
        if now >= deadline:
            raise PeerSilent(
                f"weight sync: the {self.me} (pid {os.getpid()}) waited {self.timeout:g} s for {waiting_for}; the "
                f"{self._who()} is alive but made no progress. Its log and stack (py-spy dump --pid {self.peer_pid}) show "
                "what it does; raise XPU_SHIM_WEIGHT_SYNC_TIMEOUT (seconds) if it only needs longer."
            )
        ready = {fd for fd, _ in poller.poll(1000 * min(_TICK, deadline - now))}
        if self._wake_read in ready:
            raise Interrupted(f"weight sync: the {self.me} was told to stop while it waited for {waiting_for}")
        if events == select.POLLOUT and self._socket.fileno() in ready and self._receiving.acquire(blocking=False):
            try:
                self._pump()
                if self._ended:
                    self._raise_reported()
                    raise self._gone(waiting_for)
            finally:
                self._receiving.release()
        if self._pidfd in ready and self._socket.fileno() not in ready:
            # Nothing left to read and the process has ended: a forked child holds the socket open.
            self._ended = True
            if events == select.POLLOUT:
                raise self._gone(waiting_for)

    def _raise_reported(self) -> None:
        """If the last thing the peer said was why it ended, raise that."""
        while self._next() is not None:
            pass

    def _who(self) -> str:
        return f"{self.peer} (pid {self.peer_pid})" if self.peer_pid else self.peer

    def _gone(self, waiting_for: str, error: OSError | None = None) -> WeightSyncError:
        """The error for a lost peer: its own report if one is still unread, else that it died."""
        if error is not None and self._receiving.acquire(blocking=False):
            try:
                self._pump()
                self._raise_reported()
            except WeightSyncError as reported:
                return reported
            finally:
                self._receiving.release()
        if self._pidfd is not None:  # a killed process closes its files a moment before it counts as ended
            poller = select.poll()
            poller.register(self._pidfd, select.POLLIN)
            poller.poll(200)
        ended = not self.peer_pid or not running(self.peer_pid)
        how = "died" if ended else "closed its end without a word"
        detail = "" if error is None or error.errno in (errno.EPIPE, errno.ECONNRESET) else f" ({error})"
        return PeerDied(
            f"weight sync: the {self._who()} {how} while the {self.me} (pid {os.getpid()}) waited for {waiting_for}"
            f"{detail}. The other process's log, or `dmesg` after an out-of-memory kill, has the cause."
        )


def peer_pid(connection: socket.socket) -> int:
    """The pid of the process at the other end as seen from here; 0 if it is in another pid namespace."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return max(0, struct.unpack("3i", credentials)[0])


def _pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where there is none to be had."""
    if not pid or not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def _ancillary(descriptor: int | None) -> list:
    if descriptor is None:
        return []
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", descriptor))]
