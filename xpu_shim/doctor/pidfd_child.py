"""Runs alone in a child process: may one process fetch a descriptor of its sibling, as ranks of oneCCL do?

Prints {"call": the call that failed, or "", "errno": its number, or 0}.
"""

import ctypes
import json
import os
import signal
import sys

PIDFD_OPEN, PIDFD_GETFD = 434, 438  # the same on every architecture


def call(libc, number, *arguments):
    """A system call; returns its result and the error number, which is 0 if it worked."""
    ctypes.set_errno(0)
    result = libc.syscall(number, *arguments)
    return result, ctypes.get_errno() if result < 0 else 0


def fetch(libc, pid, descriptor):
    """Fetch one descriptor of process `pid`."""
    handle, problem = call(libc, PIDFD_OPEN, pid, 0)
    if problem:
        return {"call": "pidfd_open", "errno": problem}
    _, problem = call(libc, PIDFD_GETFD, handle, descriptor, 0)
    return {"call": "pidfd_getfd" if problem else "", "errno": problem}


def main():
    libc = ctypes.CDLL(None, use_errno=True)
    owner = os.fork()
    if owner == 0:
        signal.pause()
        os._exit(0)
    end, other = os.pipe()  # after the fork: the owner must not hold its writing end open
    try:
        asker = os.fork()
        if asker == 0:
            os.close(end)
            os.write(other, json.dumps(fetch(libc, owner, 0)).encode())
            os._exit(0)
        os.close(other)
        answer = b""
        while chunk := os.read(end, 4096):
            answer += chunk
        os.waitpid(asker, 0)
    finally:
        os.kill(owner, signal.SIGKILL)
        os.waitpid(owner, 0)
    sys.stdout.write(answer.decode())


if __name__ == "__main__":
    main()
