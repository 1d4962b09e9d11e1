"""A rollout that fails or dies before it connects: the trainer has the cause in seconds. Both functions are verl's own."""

from __future__ import annotations

import os
import signal
import time

import actions
import in_verl
import peers
import pytest
import upstream

#: Seconds; see test_failures_witness.
BLOCKED = 4.0
#: Much longer than anything here takes, much shorter than the 300 s that are waited for a peer.
SOON = 15.0

RELEASES = [
    pytest.param(path, id=name, marks=[pytest.mark.slow] if path else []) for name, path in upstream.releases().items()
]


@pytest.fixture(autouse=True)
def nothing_left(endpoint):
    yield
    assert peers.left_behind(endpoint) == []


def left_by_verl(endpoint: str) -> None:
    os.unlink(endpoint.removeprefix("ipc://"))


@pytest.mark.parametrize("release", RELEASES)
def test_a_worker_that_fails_before_it_receives(release, endpoint, start):
    worker = start(in_verl.worker, "shim", endpoint, release, actions.no_adapter)
    sender = start(peers.sender, "shim", endpoint, actions.plain())
    outcome = sender.outcome(SOON)
    assert outcome.error == "PeerFailed"
    assert f"weight sync failed in the receiver (pid {worker.pid}): ValueError: adapter 1 is not loaded" in outcome.text
    assert "in update_weights_from_ipc" in outcome.text  # the other end's traceback
    assert "in remove_lora" in outcome.text
    assert outcome.attributes["peer_type"] == "ValueError"
    assert worker.outcome(SOON).text == "adapter 1 is not loaded"


@pytest.mark.parametrize("release", RELEASES)
def test_stock_verl_waits_for_ever_for_a_worker_that_failed(release, endpoint, start):
    worker = start(in_verl.worker, "verl", endpoint, release, actions.no_adapter)
    sender = start(in_verl.trainer, "verl", endpoint, release, actions.engine_died)
    assert worker.outcome(SOON).text == "adapter 1 is not loaded"
    assert sender.stuck(BLOCKED)
    sender.kill()
    left_by_verl(endpoint)


@pytest.mark.parametrize("release", RELEASES)
def test_a_worker_that_does_not_fail_receives(release, endpoint, start):
    worker = start(in_verl.worker, "shim", endpoint, release, actions.nothing)
    sender = start(peers.sender, "shim", endpoint, actions.plain(3))
    assert sender.outcome().error == ""
    assert worker.said() == ["layer.0.weight", "layer.1.weight", "layer.2.weight"]
    assert worker.outcome().error == ""


def test_a_sender_that_comes_later_is_told_too(endpoint, start):
    worker = start(in_verl.worker, "shim", endpoint, "", actions.no_adapter)
    assert worker.stuck(2.0)
    outcome = start(peers.sender, "shim", endpoint, actions.plain()).outcome(SOON)
    assert "ValueError: adapter 1 is not loaded" in outcome.text
    assert worker.outcome(SOON).error == "ValueError"


def test_verls_sender_is_not_left_waiting_either(endpoint, start):
    worker = start(in_verl.worker, "shim", endpoint, "", actions.no_adapter)
    sender = start(peers.sender, "verl", endpoint, actions.plain(), 1)
    assert sender.outcome(SOON).error == ""  # it learns of the error from the rollout's call
    assert worker.outcome(SOON).error == "ValueError"


@pytest.mark.parametrize("unusable", ["setting", "device"])
def test_a_receiver_that_cannot_start(unusable, endpoint, start):
    wrong = {"XPU_SHIM_WEIGHT_SYNC_TIMEOUT": "soon"} if unusable == "setting" else {}
    receiver = start(receive_on, endpoint, "cpu" if wrong else "cuda:7", environment=wrong)
    outcome = start(peers.sender, "shim", endpoint, actions.plain()).outcome(SOON)
    assert outcome.error == "PeerFailed"
    named = receiver.outcome(SOON)
    assert f"{named.error}: {named.text}" in outcome.text
    assert named.error == ("WeightSyncSettingError" if wrong else "AssertionError")  # torch without CUDA


def receive_on(say, endpoint, device):
    loaded = peers.module("shim", "receiver")
    loaded.BucketedWeightReceiver(endpoint, peers.torch.device(device), use_shm=True).receive_weights(
        lambda w, last: None
    )


def test_an_error_after_receiving_is_not_told_twice(endpoint, start):
    receiver = start(failing_afterwards, endpoint)
    assert start(peers.sender, "shim", endpoint, actions.plain(3)).outcome().error == ""
    assert receiver.outcome(SOON).text == "post-processing"


def failing_afterwards(say, endpoint):
    from xpu_shim.weights import early

    with early.told(lambda: endpoint):
        peers.receiver(say, "shim", endpoint)
        raise RuntimeError("post-processing")


@pytest.mark.parametrize("release", RELEASES)
def test_a_call_that_fails_ends_the_sync(release, endpoint, start):
    """An engine that died: nobody comes, and nobody can say why but the server."""
    sender = start(in_verl.trainer, "shim", endpoint, release, actions.engine_died)
    outcome = sender.outcome(SOON)
    assert outcome.error == "PeerFailed"
    assert "failed while the sender was waiting for a receiver at" in outcome.text
    assert "RuntimeError: EngineCore encountered an issue" in outcome.text
    assert "in engine_died" in outcome.trace  # the cause


def test_what_the_worker_says_comes_before_what_its_call_says(endpoint, start):
    worker = start(in_verl.worker, "shim", endpoint, "", actions.no_adapter)
    outcome = start(in_verl.trainer, "shim", endpoint, "", actions.engine_died).outcome(SOON)
    assert "ValueError: adapter 1 is not loaded" in outcome.text
    assert worker.outcome(SOON).error == "ValueError"


def test_a_call_that_goes_on_disturbs_nothing(endpoint, start):
    receiver = start(peers.receiver, "shim", endpoint)
    sender = start(sending_during_a_call, endpoint)
    assert receiver.outcome().value == peers.digests(actions.plain(4))
    assert sender.outcome().value == "sent"


def sending_during_a_call(say, endpoint):
    import threading
    from concurrent.futures import Future

    from xpu_shim.weights import call

    pending = in_verl.Call(Future())
    call.announce(pending)
    before = threading.active_count()
    peers.sender(say, "shim", endpoint, actions.plain(4))
    pending.future().set_exception(RuntimeError("long after the sync"))
    time.sleep(1.5)
    assert threading.active_count() <= before
    return "sent"


@pytest.mark.parametrize("victim", ["sender", "receiver"])
def test_killed_between_two_syncs(victim, endpoint, start):
    """Only its pid is known then."""
    receiver = start(peers.receiver, "shim", endpoint, 1 if victim == "receiver" else 2)
    assert receiver.said() == "ready"
    sender = (
        start(waiting_between, endpoint)
        if victim == "receiver"
        else start(peers.sender, "shim", endpoint, {"a": peers.torch.ones(3)})
    )
    assert sender.said() == "sent"
    assert isinstance(receiver.said(), dict)
    dead, other = (sender, receiver) if victim == "sender" else (receiver, sender)
    begun = time.monotonic()
    if dead.process.is_alive():
        os.kill(dead.pid, signal.SIGKILL)
    dead.process.join(10)
    outcome = other.outcome(SOON)
    assert outcome.error == "PeerDied"
    assert f"{victim} of the last sync at {endpoint} (pid {dead.pid}) died" in outcome.text
    assert outcome.ended - begun < 5


def waiting_between(say, endpoint):
    peers.sender(say, "shim", endpoint, {"a": peers.torch.ones(3)}, syncs=2)


def test_a_second_receiver_is_refused_while_the_trainer_is_busy(endpoint, start):
    """Not only when the next tensor is sent."""
    first = start(peers.receiver, "shim", endpoint)
    sender = start(peers.sender, "shim", endpoint, actions.stalled)
    assert sender.said() == "stalling"
    begun = time.monotonic()
    outcome = start(peers.receiver, "shim", endpoint).outcome(SOON)
    assert outcome.error == "PeerRefused"
    assert f"pid {sender.pid} is already serving another receiver" in outcome.text
    assert outcome.ended - begun < 5
    assert first.process.is_alive()
    assert sender.process.is_alive()
    sender.kill()
    assert first.outcome(SOON).error == "PeerDied"
