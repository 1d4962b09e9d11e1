"""One end with the shim, the other without: recognised and served, or refused with a clear error."""

from __future__ import annotations

import actions
import peers
import pytest

SHORT = {"XPU_SHIM_WEIGHT_SYNC_TIMEOUT": "2"}


@pytest.fixture
def aligned():
    """What verl's own sender can carry in all releases: sizes that keep every tensor at a multiple of 8 bytes."""
    weights = actions.plain(6)
    weights["bf16"] = weights["layer.0.weight"].bfloat16()
    weights["f8"] = weights["layer.1.weight"].to(peers.torch.float8_e4m3fn)
    return weights


def test_a_sender_with_the_shim_serves_verls_receiver(endpoint, start):
    receiver = start(peers.receiver, "verl", endpoint)
    assert receiver.said() == "ready"
    sender = start(peers.sender, "shim", endpoint, actions.for_verl, 1)
    outcome = sender.outcome()
    assert outcome.error == "", outcome.text
    assert receiver.outcome().value == peers.digests(dict(actions.for_verl(None)))
    assert peers.left_behind(endpoint) == []


def test_a_receiver_with_the_shim_is_served_by_verls_sender(endpoint, start, aligned):
    receiver = start(peers.receiver, "shim", endpoint, 3)
    assert receiver.said() == "ready"
    sender = start(peers.sender, "verl", endpoint, aligned, 3, 3)
    assert sender.outcome().error == ""
    assert receiver.outcome().value == peers.digests(aligned)


def test_verls_sender_is_not_left_waiting_when_loading_fails(endpoint, start):
    receiver = start(peers.receiver, "shim", endpoint, 1, actions.raise_at_third)
    assert receiver.said() == "ready"
    sender = start(peers.sender, "verl", endpoint, actions.plain(), 1)
    assert sender.outcome().error == ""
    assert receiver.outcome().text == "shape mismatch in layer.3.weight"


def test_verls_receiver_that_dies_is_noticed(endpoint, start):
    receiver = start(peers.receiver, "verl", endpoint, 1, actions.die)
    assert receiver.said() == "ready"
    outcome = start(peers.sender, "shim", endpoint, actions.plain(), 1).outcome()
    assert outcome.error == "PeerDied"
    assert "runs without xpu-shim" in outcome.text
    assert str(receiver.pid) in outcome.text
    assert peers.left_behind(endpoint) == []


def test_verls_receiver_that_fails_is_noticed(endpoint, start):
    receiver = start(peers.receiver, "verl", endpoint, 1, actions.raise_at_third, environment=SHORT)
    assert receiver.said() == "ready"
    outcome = start(peers.sender, "shim", endpoint, actions.plain(), 1, environment=SHORT).outcome()
    # Whether its socket closes depends on the release; if not, the limit ends the wait.
    assert outcome.error in ("PeerDied", "PeerSilent")
    assert "runs without xpu-shim" in outcome.text
    assert receiver.outcome().error == "ValueError"


def test_verls_sender_that_dies_is_noticed(endpoint, start):
    receiver = start(peers.receiver, "shim", endpoint)
    assert receiver.said() == "ready"
    assert start(peers.sender, "verl", endpoint, actions.dying, 1).outcome().error == "exit -9"
    outcome = receiver.outcome()
    assert outcome.error == "PeerDied"


def test_a_tensor_verls_receiver_cannot_take_is_refused_with_the_way_out(endpoint, start):
    receiver = start(peers.receiver, "verl", endpoint)
    assert receiver.said() == "ready"
    outcome = start(peers.sender, "shim", endpoint, actions.plain(2, 2048), 1).outcome()
    assert outcome.error == "UnsendableTensor"
    assert "update_weights_bucket_megabytes" in outcome.text
    receiver.kill()
