"""Two real processes for every test here; no vLLM, no Ray, no accelerator."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parent)]

import peers  # noqa: E402


@pytest.fixture
def endpoint():
    with peers.address() as address:
        yield address


@pytest.fixture
def start():
    """Starts an end; whatever is still running when the test is over is killed."""
    ends: list[peers.End] = []

    def run(target, *arguments, **keywords) -> peers.End:
        ends.append(peers.End(target, *arguments, **keywords))
        return ends[-1]

    yield run
    for end in ends:
        if end.process.is_alive():
            end.kill()
