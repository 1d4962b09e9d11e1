"""Two receivers at one address, in the orders in which a message could go to the one that has just left."""

from __future__ import annotations

import threading
import time

import pytest

from xpu_shim.weights.errors import PeerRefused
from xpu_shim.weights.rendezvous import KEY, ReceiverSide, SenderSide
from xpu_shim.weights.wire import Kind

REPEATS = 10


@pytest.fixture
def sender(endpoint):
    made: list[SenderSide] = []

    def make() -> SenderSide:
        made.append(SenderSide(endpoint, {"name": "unused", "size": 0}, 1 << 20, 10.0))
        return made[-1]

    yield make
    for side in made:
        side.close()


class _Meeting(threading.Thread):
    """`meet` in a thread: what it gave or raised."""

    def __init__(self, side: SenderSide) -> None:
        super().__init__(daemon=True)
        self._side = side
        self.met: tuple | None = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.met = self._side.meet()
        except BaseException as error:
            self.error = error

    def channel(self):
        self.join(10)
        assert not self.is_alive(), "the sender still waits"
        assert self.error is None, self.error
        assert self.met is not None
        return self.met[0]


def connected(endpoint: str) -> ReceiverSide:
    side = ReceiverSide(endpoint, 10.0)
    limit = time.monotonic() + 10
    while not side._watched.came:
        assert time.monotonic() < limit
        side._watched.poll(0, timeout=0.01)
        side._watched.update()
    return side


def goes_over(side: ReceiverSide, first):
    channel = side.open_channel(first)
    assert channel is not None
    channel.send(Kind.HELLO, {"token": first[KEY]["token"]})
    side.close()
    return channel


def refused(side: ReceiverSide) -> str:
    with pytest.raises(PeerRefused) as caught:
        side.open_channel(side.hear())
    side.close()
    return str(caught.value)


@pytest.mark.parametrize("closes", [False, True], ids=["while it serves", "as it closes"])
def test_who_came_before_the_served_one_left_is_refused(endpoint, sender, closes):
    for _ in range(REPEATS):
        side = sender()
        meeting = _Meeting(side)
        first = connected(endpoint)
        said = first.hear()
        second = connected(endpoint)
        mine = goes_over(first, said)
        theirs = meeting.channel()
        side.keep_the_door()
        closing = threading.Thread(target=side.close) if closes else None
        if closing is not None:
            closing.start()
        assert "already serving another receiver" in refused(second)
        if closing is not None:
            closing.join(10)
        side.close()
        mine.close()
        theirs.close()


def test_all_of_several_are_refused(endpoint, sender):
    side = sender()
    meeting = _Meeting(side)
    first = connected(endpoint)
    said = first.hear()
    others = [connected(endpoint) for _ in range(4)]
    mine = goes_over(first, said)
    theirs = meeting.channel()
    side.keep_the_door()
    late = connected(endpoint)
    for other in [*others, late]:
        refused(other)
    mine.close()
    theirs.close()


def test_who_is_left_is_served_when_the_first_goes_away(endpoint, sender):
    for _ in range(REPEATS):
        side = sender()
        meeting = _Meeting(side)
        first = connected(endpoint)
        first.hear()
        second = connected(endpoint)
        first.close()
        mine = goes_over(second, second.hear())
        theirs = meeting.channel()
        side.close()
        mine.close()
        theirs.close()
