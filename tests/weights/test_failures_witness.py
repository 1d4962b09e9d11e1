"""verl's own transfer, nothing patched, two processes: the failures the shim is for. Each is the other half of a test in
`test_failures.py`."""

from __future__ import annotations

import os

import actions
import peers
import pytest


@pytest.fixture(autouse=True)
def tidy(start):
    """verl leaves its segments behind."""
    before = set(peers.segments("verl_weights_"))
    yield
    for name in set(peers.segments("verl_weights_")) - before:
        os.unlink(f"/dev/shm/{name}")


#: Long enough to tell "blocked" from "slow" for transfers that take milliseconds.
BLOCKED = 4.0


def test_a_receiver_that_fails_leaves_the_sender_waiting_for_ever(endpoint, start):
    receiver = start(peers.receiver, "verl", endpoint, 1, actions.raise_at_third)
    assert receiver.said() == "ready"
    sender = start(peers.sender, "verl", endpoint, actions.plain())
    assert receiver.outcome().error in ("ValueError", "BufferError")
    assert sender.stuck(BLOCKED)


def test_on_shared_memory_that_is_not_copied_a_failure_is_hidden_by_a_buffer_error(endpoint, start):
    receiver = start(peers.receiver, "verl", endpoint, 1, actions.raise_at_third, False)
    assert receiver.said() == "ready"
    start(peers.sender, "verl", endpoint, actions.plain())
    outcome = receiver.outcome()
    assert outcome.error == "BufferError"
    assert "cannot close exported pointers exist" in outcome.text


def test_a_receiver_that_dies_leaves_the_sender_waiting_for_ever(endpoint, start):
    receiver = start(peers.receiver, "verl", endpoint, 1, actions.die)
    assert receiver.said() == "ready"
    sender = start(peers.sender, "verl", endpoint, actions.plain())
    assert receiver.outcome().error == "exit -9"
    assert sender.stuck(BLOCKED)
    sender.kill()
    assert os.path.exists(endpoint.removeprefix("ipc://"))
    assert peers.segments("verl_weights_")


def test_a_sender_that_fails_leaves_the_receiver_waiting_for_ever(endpoint, start):
    receiver = start(peers.receiver, "verl", endpoint)
    assert receiver.said() == "ready"
    assert start(peers.sender, "verl", endpoint, actions.failing).outcome().error == "RuntimeError"
    assert receiver.stuck(BLOCKED)


def test_a_tensor_larger_than_the_bucket_is_refused_and_the_receiver_left_waiting(endpoint, start):
    receiver = start(peers.receiver, "verl", endpoint)
    assert receiver.said() == "ready"
    outcome = start(peers.sender, "verl", endpoint, actions.plain(2, 2048), 1).outcome()
    assert outcome.error == "AssertionError"
    assert "is too large to fit in the bucket" in outcome.text
    assert receiver.stuck(BLOCKED)


def test_two_receivers_at_one_address_break_each_other(endpoint, start):
    receivers = [start(peers.receiver, "verl", endpoint, 1, actions.slow) for _ in range(2)]
    assert [receiver.said() for receiver in receivers] == ["ready", "ready"]
    sender = start(peers.sender, "verl", endpoint, actions.plain(), 1)
    assert sender.stuck(BLOCKED)
    ended = [receiver.outcome().error for receiver in receivers if not receiver.process.is_alive()]
    assert ended in ([], ["KeyError"])


def test_the_event_loop_stands_still_while_the_receiver_loads(endpoint, start):
    receiver = start(
        peers.receiver, "verl", endpoint, 2, actions.slow
    )  # stays: at its exit the last answer can be lost
    assert receiver.said() == "ready"
    longest = start(peers.sender, "verl", endpoint, actions.plain(), 32).outcome().value
    assert longest == 0.0 or longest > 0.9  # not served once, or not for the whole load


@pytest.mark.parametrize("bucket_mb", [64])
def test_a_short_dev_shm_kills_the_sender(endpoint, bucket_mb):
    import private_mounts

    outcome = private_mounts.sync("verl", size="16m", bucket_mb=bucket_mb, mib=24)
    assert outcome.sender_exit == -7  # SIGBUS
