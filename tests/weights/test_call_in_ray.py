"""The trainer's call of the rollout as it is in a run, a Ray ObjectRef: its failure ends the sync. Tens of seconds, for Ray."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time

import actions
import in_verl
import peers
import pytest
import upstream

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def training_rank(say, way: str, endpoint: str, fate: str):
    """verl's `ServerAdapter.update_weights` with a server that is a Ray actor; says when the call was made and what of it."""
    import ray

    sender = upstream.load().BucketedWeightSender
    adapter = upstream.parts(
        f"{in_verl.ROLLOUT}.vllm_rollout",
        "ServerAdapter",
        {"update_weights", "_execute_method", "_ensure_server_handle"},
        BucketedWeightSender=sender,
        time=time,
    )
    in_verl.load(way, "sender", "call")
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as folder:
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
        try:
            server = make_server(ray, fate)
            ray.get(server.ready.remote())
            this = adapter()
            vars(this).update(vars(in_verl.ADAPTER), zmq_handle=endpoint, server_handle=server, config=in_verl.CONFIG)
            say(time.monotonic())
            asyncio.run(this.update_weights(actions.generated_few(say)))
        finally:
            ray.shutdown()  # at the exit of such a process nobody else does it


def make_server(ray, fate: str):
    @ray.remote(num_cpus=0)
    class Server:
        async def ready(self):
            return True

        async def collective_rpc(self, method, timeout=None, args=(), kwargs=None):
            if fate == "raises":
                raise RuntimeError("EngineCore encountered an issue")
            os.kill(os.getpid(), signal.SIGKILL)

    return Server.remote()


@pytest.mark.parametrize(
    ("fate", "named"), [("raises", "RuntimeError: EngineCore encountered an issue"), ("dies", "The actor died")]
)
def test_a_server_that_fails_ends_the_sync(fate, named, endpoint, start):
    rank = start(training_rank, "shim", endpoint, fate)
    called = rank.said(120)
    outcome = rank.outcome(60)
    assert outcome.error == "PeerFailed", outcome.trace
    assert "failed while the sender was waiting for a receiver at" in outcome.text
    assert named in outcome.text.replace("died unexpectedly", "died")
    assert outcome.ended - called < 20  # Ray takes a few to be sure of a dead actor; 300 without the call
    assert peers.left_behind(endpoint) == []


def test_with_stock_verl_the_trainer_waits_for_ever(endpoint, start):
    rank = start(training_rank, "verl", endpoint, "dies")
    rank.said(120)
    assert rank.stuck(15)
    os.kill(rank.pid, signal.SIGTERM)  # Ray makes an exit of it, and stops
    rank.process.join(60)
    assert not rank.process.is_alive()
    assert not os.path.exists(endpoint.removeprefix("ipc://"))  # verl removes it when it is told to exit
