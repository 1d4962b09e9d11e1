"""Whatever is sent arrives bit-equal: kinds of tensors, sizes around every boundary, any mixture of them."""

from __future__ import annotations

import actions
import peers
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xpu_shim.weights import tensors

BACKENDS = ["memfd", "shm", "socket"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_kind_of_tensor(endpoint, start, backend):
    receiver = start(peers.receiver, "shim", endpoint)
    assert receiver.said() == "ready"
    sender = start(send_mixed, endpoint, backend)
    assert sender.outcome().error == ""
    assert receiver.outcome().value == peers.digests(actions.mixed())


def send_mixed(say, endpoint, backend):
    import os

    os.environ["XPU_SHIM_WEIGHT_SYNC_BACKEND"] = backend
    return peers.sender(say, "shim", endpoint, actions.mixed(), 1 / 16)


def test_a_buffer_that_is_refilled_for_every_tensor(endpoint, start):
    receiver = start(peers.receiver, "shim", endpoint)
    assert receiver.said() == "ready"
    assert start(peers.sender, "shim", endpoint, actions.refilled, 1).outcome().error == ""
    expected = {f"w{i}": peers.digest(torch.full((300, 1000), float(i))) for i in range(12)}
    assert receiver.outcome().value == expected


def test_nothing_at_all(endpoint, start):
    receiver = start(peers.receiver, "shim", endpoint, 1, actions.say_names)
    assert receiver.said() == "ready"
    assert start(peers.sender, "shim", endpoint, {}).outcome().error == ""
    assert receiver.said() == ([], True)


def test_calls_are_in_order_and_only_the_last_is_the_last(endpoint, start):
    receiver = start(peers.receiver, "shim", endpoint, 1, actions.say_names)
    assert receiver.said() == "ready"
    weights = actions.plain(9)
    assert start(peers.sender, "shim", endpoint, weights, 2).outcome().error == ""
    names: list[str] = []
    last = False
    while not last:
        part, last = receiver.said()
        assert part
        names += part
    assert names == list(weights)


def test_a_callback_that_is_not_told_the_last_gets_a_whole_bucket_at_once(endpoint, start):
    """verl before 0.9.0 gives an adapter's weights to the engine call by call, so one bucket has to be one call."""
    receiver = start(buckets_of_a_callback_without_last, endpoint)
    assert receiver.said() == "ready"
    weights = actions.plain(8)  # 4 MiB
    assert start(peers.sender, "shim", endpoint, weights, 8).outcome().error == ""
    assert receiver.outcome().value == [list(weights)]


def buckets_of_a_callback_without_last(say, endpoint):
    loaded = peers.module("shim", "receiver")
    calls = []
    say("ready")
    receiver = loaded.BucketedWeightReceiver(endpoint, torch.device("cpu"), use_shm=True)
    receiver.receive_weights(lambda weights: calls.append([name for name, _ in weights]))
    return calls


def test_only_equal_contents_are_tied():
    from xpu_shim.weights import ties

    found = ties.Ties()
    weight = torch.zeros(ties.SMALLEST // 4)
    assert found.find(0, weight) is None
    assert found.find(1, weight.detach()) == 0
    weight.data[12345] = 1.0  # no version counter sees this
    assert found.find(2, weight) is None
    assert found.find(3, weight) == 2
    assert found.find(4, weight.view(2, -1)) is None


def test_tied_weights_travel_once(endpoint, start):
    receiver = start(peers.receiver, "shim", endpoint, 2)
    assert receiver.said() == "ready"
    sender = start(send_tied, endpoint)
    outcome = sender.outcome()
    assert outcome.error == ""
    embedding, other = 4 << 20, 6 << 20
    # Far apart in the first sync, so sent twice; from the second on the receiver keeps what is needed again.
    assert outcome.value == [2 * embedding + other, embedding + other]
    expected = tied()
    assert receiver.outcome().value == peers.digests(expected)


def tied():
    weights = {"embed": torch.arange(1 << 20, dtype=torch.float32).view(1024, 1024)}
    weights |= actions.plain(12)
    weights["head"] = weights["embed"]
    return weights


def send_tied(say, endpoint):
    from xpu_shim.weights import sender, ties

    ties.SMALLEST = 1 << 20
    sent = []
    report = sender.Sender._report
    sender.Sender._report = lambda self, *args: (sent.append(self.offset), report(self, *args))
    weights = tied()
    peers.sender(say, "shim", endpoint, weights, 4, 2)
    return sent


# Any mixture, to a receiver that stays.


@st.composite
def cases(draw):
    specifications = []
    for _ in range(draw(st.integers(0, 12))):
        shape = draw(st.lists(st.integers(0, 40), max_size=4))
        # Some are larger than a slot and than the bucket.
        if shape and draw(st.integers(0, 5)) == 0:
            shape[0] *= 60
        specifications.append(
            (
                shape[:3] if len(shape) > 3 and shape[0] > 200 else shape,
                draw(st.sampled_from(actions.DTYPES)),
                draw(st.sampled_from(["plain", "transposed", "sliced", "expanded", "offset", "again"])),
            )
        )
    return specifications, draw(st.sampled_from([1 / 16, 1 / 8, 0.3, 1, 5])), draw(st.integers(0, 2**31))


def build(specifications, seed) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, torch.Tensor] = {}
    for number, (shape, dtype_name, layout) in enumerate(specifications):
        dtype = getattr(torch, dtype_name, torch.float32)
        full = list(shape)
        if layout == "sliced" and full:
            full[-1] = 2 * full[-1] + 1
        if layout == "expanded" and full:
            full[0] = 1
        count = torch.Size(full).numel() * dtype.itemsize + (dtype.itemsize if layout == "offset" else 0)
        data = torch.randint(0, 256, (min(count, 8 << 20),), dtype=torch.uint8, generator=generator)
        if count > data.numel():
            data = data.repeat(-(-count // data.numel()))[:count]
        if dtype is torch.bool:
            data &= 1
        tensor = data[dtype.itemsize if layout == "offset" else 0 :].view(dtype).view(full)
        if layout == "transposed" and len(shape) > 1:
            tensor = tensor.transpose(0, -1)
        elif layout == "sliced" and shape:
            tensor = tensor[..., ::2][..., : shape[-1]]
        elif layout == "expanded" and shape:
            tensor = tensor.expand(shape)
        elif layout == "again" and weights:
            tensor = next(iter(weights.values()))
        weights[f"weight.{number}"] = tensor
    return weights


@pytest.fixture(scope="module")
def lasting():
    with peers.address() as endpoint:
        end = peers.End(peers.receiver, "shim", endpoint, 10_000)
        assert end.said() == "ready"
        yield endpoint, end
        end.kill()


def send_here(endpoint, weights, bucket_mb) -> None:
    import asyncio

    from xpu_shim.weights.sender import send_weights

    async def given_weights():
        for item in weights.items():
            yield item

    asyncio.run(send_weights(endpoint, int(bucket_mb * (1 << 20)), given_weights()))


def check_case(lasting, case) -> None:
    endpoint, receiver = lasting
    specifications, bucket_mb, seed = case
    weights = build(specifications, seed)
    send_here(endpoint, weights, bucket_mb)
    assert receiver.said() == peers.digests(weights)


COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}


@settings(max_examples=60, **COMMON)
@given(cases())
def test_any_mixture(lasting, case):
    check_case(lasting, case)


@pytest.mark.slow
@settings(max_examples=600, **COMMON)
@given(cases())
def test_any_mixture_at_length(lasting, case):
    check_case(lasting, case)


@settings(max_examples=150, **COMMON)
@given(cases(), st.lists(st.integers(1, 200), min_size=1, max_size=20))
def test_pieces_are_the_row_major_bytes(case, rooms):
    specifications, _, seed = case
    for tensor in build(specifications, seed).values():
        plain = tensors.prepare("x", tensor)
        if not plain.nbytes:
            continue
        largest = plain.nbytes // 4 + 16

        def room(largest=largest):
            while True:
                for value in rooms:
                    yield 16 * value if largest < 16 * value else largest // 16 * 16 + 16

        memory = torch.zeros(plain.nbytes + largest + 64, dtype=torch.uint8)
        position = 0
        for part in tensors.pieces(plain, room()):
            tensors.write(part, memory[position:].clone() if position % 16 else memory[position:])
            if position % 16:
                staged = torch.zeros(part.nbytes, dtype=torch.uint8)
                tensors.write(part, staged)
                memory[position : position + part.nbytes] = staged
            position += part.nbytes
        assert position == plain.nbytes
        again = tensors.view(memory[:position].clone(), 0, plain.dtype, list(plain.shape))
        assert peers.digest(again) == peers.digest(tensor)
