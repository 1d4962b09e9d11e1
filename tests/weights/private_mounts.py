"""A sync with a /dev/shm of a given size, in a private mount namespace where the system allows one."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass
class Result:
    sender_exit: int
    sender: str
    receiver: str
    equal: bool
    log: str


def prefix() -> list[str] | None:
    """The command that gives a private mount namespace: as root, or as a user who may make one; None without either."""
    for command in (["unshare", "-m"], ["unshare", "-Urm"]):
        try:
            done = subprocess.run(
                [*command, "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], capture_output=True, timeout=20
            )
        except OSError:
            return None
        if done.returncode == 0:
            return command
    return None


def sync(way: str, size: str, bucket_mb: int, mib: int, full: bool = False, backend: str = "auto") -> Result:
    """One sync of `mib` MiB; `size` as mount takes it. `full`: all of it is taken by a file before."""
    command = prefix()
    assert command is not None, "no private mount namespace here; use `limited` instead"
    fill = "head -c 1G /dev/zero > /dev/shm/full 2>/dev/null; " if full else ""
    program = f"{sys.executable} {__file__} {way} {bucket_mb} {mib}"
    script = f"mount -t tmpfs -o size={size} tmpfs /dev/shm && {{ {fill} exec {program}; }}"
    environment = os.environ | {"XPU_SHIM_WEIGHT_SYNC_BACKEND": backend, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, "sh", "-c", script], capture_output=True, text=True, timeout=180, env=environment)
    assert done.stdout.startswith("{"), done.stderr[-3000:]
    return Result(**json.loads(done.stdout), log=done.stderr)


def main() -> None:
    import actions
    import peers

    way, bucket_mb, mib = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    # Made by the sender itself: torch hands tensors to another process through the very /dev/shm that is short here.
    made = functools.partial(actions.generated, count=mib, kib=1024)
    with peers.address() as endpoint:
        receiver = peers.End(peers.receiver, way, endpoint)
        assert receiver.said() == "ready"
        sender = peers.End(peers.sender, way, endpoint, made, bucket_mb)
        mine = sender.outcome()
        if mine.error.startswith("exit"):
            receiver.kill()
        theirs = receiver.outcome()
    result = {
        "sender_exit": sender.process.exitcode,
        "sender": f"{mine.error}: {mine.text}" if mine.error else "",
        "receiver": f"{theirs.error}: {theirs.text}" if theirs.error else "",
        "equal": theirs.value == peers.digests(actions.plain(mib, 1024)),
    }
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main()
