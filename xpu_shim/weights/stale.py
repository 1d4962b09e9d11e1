"""What killed runs left behind: named segments of dead processes, socket files nobody listens at.

The shim's own segments have no name, except the one offered to a peer without the shim; its name says whose it is.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import secrets
import socket

#: Where POSIX shared memory lives on Linux.
SHM_DIRECTORY = "/dev/shm"

_NAME = re.compile(r"xpu-shim-ws-(\d+)-(\d+)-(\d+)-[0-9a-f]+")


def segment_name() -> str:
    """A new name for a segment of this process: pid namespace, pid and start time make the owner recognisable."""
    pid = os.getpid()
    return f"xpu-shim-ws-{_pid_namespace()}-{pid}-{start_time(pid)}-{secrets.token_hex(4)}"


def remove_dead_segments(directory: str = SHM_DIRECTORY) -> list[str]:
    """Unlink named segments whose process is dead; the paths removed.

    Segments of another pid namespace are left alone: whether their owner lives cannot be seen from here.
    """
    removed = []
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None or int(match[1]) != _pid_namespace() or start_time(int(match[2])) == int(match[3]):
            continue
        path = os.path.join(directory, name)
        if _unlink(path):
            removed.append(path)
    return removed


def remove_dead_sockets(endpoint: str) -> list[str]:
    """Unlink socket files of verl's naming beside `endpoint` at which no process listens; the paths removed.

    Args:
        endpoint: the address of the sync about to start, "ipc://<path>"; its own file is left to the bind.
    """
    path = endpoint.removeprefix("ipc://")
    pattern = os.path.join(glob.escape(os.path.dirname(path) or "."), "rl-colocate-zmq-*.sock")
    return [other for other in glob.glob(pattern) if other != path and remove_socket_if_dead(other)]


def remove_socket_if_dead(path: str) -> bool:
    """Unlink a socket file if it is ours and connecting to it is refused; whether it was removed."""
    try:
        if os.stat(path).st_uid != os.getuid():
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            probe.connect(path)
    except OSError as error:
        return error.errno == errno.ECONNREFUSED and _unlink(path)
    return False


def _unlink(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def start_time(pid: int) -> int:
    """When the process started, in clock ticks since boot; 0 if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0
