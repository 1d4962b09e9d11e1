"""SIGKILL of either end anywhere in the stream: the other ends by itself, and the next pair works."""

from __future__ import annotations

import os
import random
import signal
import time

import actions
import peers
import pytest

COUNT = 200


def kill_once(start, endpoint, victim: str, random_source: random.Random) -> float:
    """Kill `victim` when a random tensor is handed to the sender; the seconds from the kill to the other end's result or error."""
    receiver = start(peers.receiver, "shim", endpoint)
    assert receiver.said() == "ready"
    sender = start(peers.sender, "shim", endpoint, actions.announced, random_source.choice([1, 4, 16]))
    wanted = random_source.randrange(COUNT)
    for _ in range(wanted + 1):
        sender.said()
    time.sleep(random_source.random() * 0.003)
    dead, other = (sender, receiver) if victim == "sender" else (receiver, sender)
    begun = time.monotonic()
    if dead.process.is_alive():
        os.kill(dead.pid, signal.SIGKILL)
    outcome = other.outcome()
    seconds = outcome.ended - begun  # by the other end's own clock: how long it takes to be asked does not count
    # The last bytes may have been on their way: then it ended well, else it says that the other died.
    assert outcome.error in ("", "PeerDied"), outcome.text
    assert peers.left_behind(endpoint) == []
    return seconds


def kill_and_go_on(start, endpoint, victim: str, times: int, seed: int) -> None:
    source = random.Random(seed)
    seconds = sorted(kill_once(start, endpoint, victim, source) for _ in range(times))
    print(
        f"{victim} killed {times} times: the other end ended in {seconds[times // 2]:.3f} s (median), {seconds[-1]:.3f} s"
    )
    assert seconds[-1] < 5  # 300 without a watch on the other process
    receiver = start(peers.receiver, "shim", endpoint)
    assert receiver.said() == "ready"
    weights = actions.plain()
    assert start(peers.sender, "shim", endpoint, weights).outcome().error == ""
    assert receiver.outcome().value == peers.digests(weights)


@pytest.mark.parametrize("victim", ["sender", "receiver"])
def test_sigkill_at_random_offsets(endpoint, start, victim):
    kill_and_go_on(start, endpoint, victim, times=5, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["sender", "receiver"])
def test_sigkill_at_fifty_random_offsets(endpoint, start, victim):
    kill_and_go_on(start, endpoint, victim, times=50, seed=2)


@pytest.mark.parametrize("both", [False, True], ids=["before a receiver came", "both ends at once"])
def test_a_killed_sender_that_nobody_survives_leaves_no_socket_file(both, endpoint, start):
    """As when Ray ends a run: every process gets SIGKILL, and there is no next sync that would find the file."""
    receiver = start(peers.receiver, "shim", endpoint) if both else None
    sender = start(peers.sender, "shim", endpoint, actions.announced, 1)
    path, limit = endpoint.removeprefix("ipc://"), time.monotonic() + 30
    while not os.path.exists(path):
        assert time.monotonic() < limit
        time.sleep(0.005)
    if both:
        for _ in range(COUNT // 2):
            sender.said()
    else:
        time.sleep(0.3)  # the first time, a shell is started after the file was made
    for process in filter(None, (receiver, sender)):
        os.kill(process.pid, signal.SIGKILL)
    limit = time.monotonic() + 5
    while os.path.exists(path) and time.monotonic() < limit:
        time.sleep(0.01)
    assert not os.path.exists(path)
