"""The same failures with the shim: both ends end, the real cause is named at both, nothing is left behind."""

from __future__ import annotations

import actions
import peers
import pytest


@pytest.fixture(autouse=True)
def nothing_left(endpoint):
    yield
    assert peers.left_behind(endpoint) == []


def pair(start, endpoint, weights, act=None, bucket_mb=4, **keywords):
    receiver = start(peers.receiver, "shim", endpoint, 1, act, **keywords)
    assert receiver.said() == "ready"
    return receiver, start(peers.sender, "shim", endpoint, weights, bucket_mb, **keywords)


def test_the_receivers_error_is_raised_in_the_trainer_with_its_place(endpoint, start):
    receiver, sender = pair(start, endpoint, actions.plain(), actions.raise_at_third)
    mine, theirs = sender.outcome(), receiver.outcome()
    assert (theirs.error, theirs.text) == ("ValueError", "shape mismatch in layer.3.weight")
    assert mine.error == "PeerFailed"
    assert "ValueError: shape mismatch in layer.3.weight" in mine.text
    assert "raise_at_third" in mine.text  # the other end's traceback
    assert mine.attributes["tensor"] == "layer.3.weight"
    assert mine.attributes["offset"] == 3 * (512 << 10)
    assert mine.attributes["peer_type"] == "ValueError"


def test_the_senders_error_is_raised_in_the_receiver(endpoint, start):
    receiver, sender = pair(start, endpoint, actions.failing)
    assert sender.outcome().text == "the trainer could not gather layer.3.weight"
    outcome = receiver.outcome()
    assert outcome.error == "PeerFailed"
    assert "RuntimeError: the trainer could not gather layer.3.weight" in outcome.text


def test_a_killed_receiver_is_noticed(endpoint, start):
    receiver, sender = pair(start, endpoint, actions.plain(), actions.die)
    assert receiver.outcome().error == "exit -9"
    outcome = sender.outcome()
    assert outcome.error == "PeerDied"
    assert f"receiver (pid {receiver.pid}) died" in outcome.text


def test_a_killed_sender_is_noticed_and_its_socket_removed(endpoint, start):
    receiver, sender = pair(start, endpoint, actions.dying)
    assert sender.outcome().error == "exit -9"
    outcome = receiver.outcome()
    assert outcome.error == "PeerDied"
    assert f"sender (pid {sender.pid}) died" in outcome.text


def test_a_silent_receiver_is_named_with_what_is_waited_for(endpoint, start):
    short = {"XPU_SHIM_WEIGHT_SYNC_TIMEOUT": "1.5"}
    receiver, sender = pair(start, endpoint, actions.plain(), actions.hang, environment=short)
    outcome = sender.outcome()
    assert outcome.error == "PeerSilent"
    assert "waited 1.5 s for" in outcome.text
    assert "XPU_SHIM_WEIGHT_SYNC_TIMEOUT" in outcome.text
    assert str(receiver.pid) in outcome.text
    receiver.kill()


def test_a_silent_sender_is_named_with_what_is_waited_for(endpoint, start):
    short = {"XPU_SHIM_WEIGHT_SYNC_TIMEOUT": "1.5"}
    receiver, sender = pair(start, endpoint, actions.stalled, environment=short)
    outcome = receiver.outcome()
    assert outcome.error == "PeerSilent"
    assert "waited 1.5 s for the sender's next tensors" in outcome.text
    sender.kill()
    from xpu_shim.weights import stale

    stale.remove_socket_if_dead(endpoint.removeprefix("ipc://"))  # as the next run does


def test_a_sender_nobody_comes_to(endpoint, start):
    short = {"XPU_SHIM_WEIGHT_SYNC_TIMEOUT": "1"}
    outcome = start(peers.sender, "shim", endpoint, actions.plain(), environment=short).outcome()
    assert outcome.error == "PeerSilent"
    assert "none came" in outcome.text


def test_a_receiver_without_a_sender(endpoint, start):
    short = {"XPU_SHIM_WEIGHT_SYNC_TIMEOUT": "1"}
    outcome = start(peers.receiver, "shim", endpoint, environment=short).outcome()
    assert outcome.error == "PeerSilent"
    assert "cannot be reached" in outcome.text


def test_a_tensor_larger_than_the_bucket_arrives(endpoint, start):
    weights = actions.plain(2, 2048)
    receiver, sender = pair(start, endpoint, weights, bucket_mb=1)
    assert sender.outcome().error == ""
    assert receiver.outcome().value == peers.digests(weights)


def test_a_callback_may_keep_the_tensors(endpoint, start):
    receiver = start(kept_afterwards, endpoint)
    assert receiver.said() == "ready"
    weights = actions.plain(6)
    sender = start(peers.sender, "shim", endpoint, weights, 1, 2)
    assert sender.outcome().error == ""
    assert receiver.outcome().value == [peers.digest(tensor) for tensor in weights.values()] * 2


def kept_afterwards(say, endpoint):
    peers.receiver(say, "shim", endpoint, 2, actions.keep)
    return [peers.digest(tensor) for _, tensor in actions.KEPT]


def test_a_second_receiver_is_refused_and_the_first_served(endpoint, start):
    receivers = [start(peers.receiver, "shim", endpoint, 1, actions.slow) for _ in range(2)]
    assert [receiver.said() for receiver in receivers] == ["ready", "ready"]
    weights = actions.plain(12)
    sender = start(peers.sender, "shim", endpoint, weights)
    assert sender.outcome().error == ""
    served, refused = sorted((receiver.outcome() for receiver in receivers), key=lambda outcome: outcome.error)
    assert served.value == peers.digests(weights)
    assert refused.error == "PeerRefused"
    assert f"pid {sender.pid} is already serving another receiver" in refused.text


def test_a_receiver_that_exits_right_after_its_last_answer(endpoint, start):
    for _ in range(5):
        receiver = start(gone_at_once, endpoint)
        assert receiver.said() == "ready"
        sender = start(peers.sender, "shim", endpoint, actions.plain(3))
        assert sender.outcome().error == ""
        receiver.process.join(10)


def gone_at_once(say, endpoint):
    import os

    say("ready")
    loaded = peers.module("shim", "receiver")
    receiver = loaded.BucketedWeightReceiver(endpoint, peers.torch.device("cpu"), use_shm=True)
    receiver.receive_weights(lambda weights, is_last=True: None)
    os._exit(0)


def test_the_event_loop_is_served_while_the_receiver_loads(endpoint, start):
    receiver, sender = pair(start, endpoint, actions.plain(), actions.slow, bucket_mb=32)
    longest = sender.outcome().value
    assert receiver.outcome().error == ""
    assert 0.0 < longest < 0.9


def test_a_cancelled_sync_ends_both_sides(endpoint, start):
    receiver = start(peers.receiver, "shim", endpoint, 1, actions.hang)
    assert receiver.said() == "ready"
    outcome = start(cancelled, endpoint).outcome()
    assert outcome.value == "cancelled"
    receiver.kill()


def cancelled(say, endpoint):
    import asyncio

    loaded = peers.module("shim", "sender")

    async def run():
        sender = loaded.BucketedWeightSender(endpoint, 1, use_shm=True)
        task = asyncio.ensure_future(sender.async_send_weights(iter(actions.plain(20).items())))
        await asyncio.sleep(1.0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return "cancelled"

    return asyncio.run(run())


def test_what_cannot_be_sent_is_named_and_says_what_to_do(endpoint, start):
    receiver, sender = pair(start, endpoint, {"a": peers.torch.ones(3), "b": peers.torch.ones(3, 3).to_sparse()})
    outcome = sender.outcome()
    assert outcome.error == "UnsendableTensor"
    assert "'b' has layout torch.sparse_coo" in outcome.text
    assert "'b' has layout torch.sparse_coo" in receiver.outcome().text


def test_a_wrong_setting_is_told_at_once(endpoint, start):
    wrong = {"XPU_SHIM_WEIGHT_SYNC_TIMEOUT": "soon"}
    outcome = start(peers.sender, "shim", endpoint, actions.plain(), environment=wrong).outcome()
    assert outcome.error == "WeightSyncSettingError"
    assert "XPU_SHIM_WEIGHT_SYNC_TIMEOUT='soon'" in outcome.text
