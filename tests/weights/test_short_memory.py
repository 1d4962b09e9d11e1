"""Little or no shared memory: smaller buckets and one warning, or the socket; never a signal.

/dev/shm is replaced in a private mount namespace where the system allows one. Where it does not, the same sizes are
injected where the shim asks what is free, so that something is shown everywhere.
"""

from __future__ import annotations

import os
import tempfile

import actions
import peers
import private_mounts
import pytest

from xpu_shim.weights import segment

MIB = 1 << 20


@pytest.mark.parametrize("backend", ["auto", "shm"])
@pytest.mark.parametrize(("size", "full"), [("16m", False), ("64m", False), ("16m", True)])
def test_a_short_dev_shm(endpoint, start, size, full, backend):
    if private_mounts.prefix() is None:
        limit = 0 if full else int(size[:-1]) * MIB
        check_with_injected_limit(endpoint, start, limit, backend)
        return
    result = private_mounts.sync("shim", size, bucket_mb=64, mib=24, full=full, backend=backend)
    assert (result.sender_exit, result.sender, result.receiver) == (0, "", "")
    assert result.equal
    told = "several times slower" if full else "KiB taken"
    short = backend == "shm" and size == "16m"  # 16 MiB are wanted, and at most half of what is free is taken
    assert result.log.count(told) == (1 if short else 0), result.log


@pytest.mark.parametrize("limit", [0, 16 * MIB])
def test_an_injected_limit(endpoint, start, limit):
    check_with_injected_limit(endpoint, start, limit, "shm")


def check_with_injected_limit(endpoint, start, limit, backend):
    receiver = start(peers.receiver, "shim", endpoint)
    assert receiver.said() == "ready"
    sender = start(limited, endpoint, limit, backend)
    outcome = sender.outcome()
    assert outcome.error == ""
    assert outcome.value == ({"auto": "memfd", "shm": "shm"}[backend] if limit or backend == "auto" else "socket")
    assert receiver.outcome().value == peers.digests(actions.plain(24, 1024))


def limited(say, endpoint, limit, backend):
    """A sender that is told that `limit` bytes are free in /dev/shm; what it used instead of the usual segment."""
    os.environ["XPU_SHIM_WEIGHT_SYNC_BACKEND"] = backend
    segment.free_bytes = lambda directory: limit
    peers.sender(say, "shim", endpoint, actions.plain(24, 1024), 64)
    idle = segment.POOL._idle
    assert idle is None or backend == "auto" or idle.size <= limit
    return "socket" if idle is None else idle.kind


def test_memory_is_allocated_before_it_is_mapped():
    made = segment.create(1 << 20)
    assert made is not None
    status = os.fstat(made.descriptor)
    assert status.st_blocks * 512 >= 1 << 20
    assert int(made.bytes.sum()) == 0
    made.close()


def test_a_file_system_that_says_no_is_not_an_error():
    with tempfile.TemporaryDirectory() as directory:
        assert segment.create(1 << 20, "shm", os.path.join(directory, "missing")) is None
    assert segment.create(1 << 20, "socket") is None
