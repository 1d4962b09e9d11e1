"""Two hundred syncs in a row: nothing grows."""

from __future__ import annotations

import os

import actions
import peers
import psutil
import torch

SYNCS = 200


def state() -> dict:
    import gc

    gc.collect()
    process = psutil.Process()
    with open("/proc/self/maps", encoding="utf-8") as maps:
        shared = sum("xpu-shim-weights" in line for line in maps)
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "threads": process.num_threads(),
        "segments": shared,
        "memory": process.memory_info().rss,
    }


def sending(say, endpoint):
    import asyncio

    loaded = peers.module("shim", "sender")
    weights = actions.plain(8) | actions.mixed()
    states = []
    for number in range(SYNCS):
        sender = loaded.BucketedWeightSender(endpoint, 1, use_shm=True)
        asyncio.run(sender.async_send_weights(iter(weights.items())))
        if number in (20, SYNCS - 1):
            states.append(state())
    return states


def receiving(say, endpoint):
    loaded = peers.module("shim", "receiver")
    states, last = [], {}
    say("ready")
    for number in range(SYNCS):
        last.clear()
        receiver = loaded.BucketedWeightReceiver(endpoint, torch.device("cpu"), use_shm=True)
        receiver.receive_weights(lambda weights, is_last: last.update((name, peers.digest(t)) for name, t in weights))
        if number in (20, SYNCS - 1):
            states.append(state())
    return states, last


def test_two_hundred_syncs_leak_nothing(endpoint, start):
    receiver = start(receiving, endpoint)
    assert receiver.said() == "ready"
    sender = start(sending, endpoint)
    received, sent = receiver.outcome(170), sender.outcome(10)
    assert (received.error, sent.error) == ("", "")
    states, last = received.value
    assert last == peers.digests(actions.plain(8) | actions.mixed())
    for early, late in (states, sent.value):
        assert late["files"] <= early["files"]
        assert late["threads"] <= early["threads"]
        assert late["segments"] <= early["segments"] <= 1
        assert late["memory"] - early["memory"] < 16 << 20
    assert peers.left_behind(endpoint) == []
