"""The two ends as processes, for tests: started from a fork server that has torch and verl imported.

Every end runs verl's own class, either as it is ("verl") or with the shim's patch ("shim"), and says how it ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = str(Path(__file__).resolve().parent)
ROOT = str(Path(__file__).resolve().parents[2])
for path in (ROOT, HERE):
    if path not in sys.path:
        sys.path.insert(0, path)

import torch  # noqa: E402
import upstream  # noqa: E402

torch.set_num_threads(1)

#: Seconds after which an end counts as stuck. Far above what any takes on a busy machine, far below the 300 s default.
LIMIT = 40.0

_context = None


def context() -> multiprocessing.context.BaseContext:
    """The fork server, which imports this module once."""
    global _context
    if _context is None:
        os.environ["PYTHONPATH"] = os.pathsep.join([HERE, ROOT, os.environ.get("PYTHONPATH", "")])
        _context = multiprocessing.get_context("forkserver")
        _context.set_forkserver_preload(["peers_preload"])
    return _context


@dataclass
class Outcome:
    """How an end ended."""

    error: str = ""  # class name
    text: str = ""
    trace: str = ""
    seconds: float = 0.0
    #: When the end had its result or error, by `time.monotonic`, which all processes of a host share.
    ended: float = 0.0
    value: Any = None
    attributes: dict = field(default_factory=dict)


class End:
    """A process that runs one end."""

    def __init__(self, target: Callable, *arguments: Any, environment: dict[str, str] | None = None) -> None:
        self._mine, theirs = context().Pipe()
        self.process = context().Process(target=_main, args=(theirs, target, arguments, environment or {}))
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        return self.process.pid

    def said(self, limit: float = LIMIT) -> Any:
        """The next thing the process says with `say`."""
        assert self._mine.poll(limit), f"the end said nothing within {limit} s"
        return self._mine.recv()

    def outcome(self, limit: float = LIMIT) -> Outcome:
        """How it ended; fails if it is still running after `limit` seconds."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            if self._mine.poll(0.2):
                try:
                    said = self._mine.recv()
                except EOFError:
                    break
                if isinstance(said, Outcome):
                    self.process.join(10)
                    return said
            elif not self.process.is_alive():
                break
        if not self.process.is_alive() or self.process.join(1) or not self.process.is_alive():
            return Outcome(error=f"exit {self.process.exitcode}")
        raise AssertionError(f"still running after {limit} s")

    def stuck(self, seconds: float) -> bool:
        """Whether it is still running after that time."""
        self.process.join(seconds)
        return self.process.is_alive()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(10)


def _main(connection, target: Callable, arguments: tuple, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    begun = time.monotonic()
    try:
        outcome = Outcome(value=target(connection.send, *arguments))
        outcome.ended = time.monotonic()
    except BaseException as error:
        ended = time.monotonic()
        attributes = {key: value for key, value in vars(error).items() if isinstance(value, (str, int))}
        outcome = Outcome(type(error).__name__, str(error), traceback.format_exc(), attributes=attributes, ended=ended)
    outcome.seconds = outcome.ended - begun
    connection.send(outcome)
    connection.close()


def module(way: str, end: str, copies: bool = True):
    """verl's module in this process: as it is, or with the shim's patch for this end."""
    loaded = upstream.load()
    if way == "shim":
        from xpu_shim.core.apply import apply_patch

        apply_patch(f"verl.weight_sync_{end}")
    elif copies:
        upstream.force_copies()
    return loaded


def digest(tensor: torch.Tensor) -> tuple:
    """dtype, shape and a hash of the bytes: equal if and only if tensors are bit-equal."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    # .contiguous() has no kernel for the smallest integer types; a byte view of them needs none.
    plain = plain.view(torch.uint8) if plain.element_size() == 1 else plain
    if not plain.numel():
        return str(tensor.dtype), tuple(tensor.shape), hashlib.sha256(b"").hexdigest()
    # A single element counts as contiguous whatever its strides, and then has no byte view.
    data = plain.contiguous().as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy().tobytes()
    return str(tensor.dtype), tuple(tensor.shape), hashlib.sha256(data).hexdigest()


def digests(weights: dict[str, torch.Tensor]) -> dict[str, tuple]:
    return {name: digest(tensor) for name, tensor in weights.items()}


# Ends. Each gets `say` first.


def receiver(say, way: str, endpoint: str, syncs: int = 1, act: Callable | None = None, copies: bool = True):
    """Receive `syncs` times; `act(say, weights, is_last)` runs in the callback. Returns the last sync's digests."""
    loaded = module(way, "receiver", copies)
    got: dict[str, tuple] = {}

    def load(weights, is_last=True):
        if act is not None:
            act(say, weights, is_last)
        got.update((name, digest(tensor)) for name, tensor in weights)

    say("ready")
    for _ in range(syncs):
        got.clear()
        loaded.BucketedWeightReceiver(endpoint, torch.device("cpu"), use_shm=True).receive_weights(load)
        say(dict(got))
    return dict(got)


def sender(say, way: str, endpoint: str, weights: Callable | dict, bucket_mb: float = 4, syncs: int = 1):
    """Send `syncs` times what `weights` gives. Returns the longest time the event loop was not served, in seconds."""
    loaded = module(way, "sender")
    longest = 0.0

    async def beat() -> None:
        nonlocal longest
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.005)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()

    async def run() -> None:
        heart = asyncio.ensure_future(beat())
        try:
            end = loaded.BucketedWeightSender(endpoint, 1, use_shm=True)
            end.bucket_size_mb, end.bucket_size = bucket_mb, int(bucket_mb * (1 << 20))
            await end.async_send_weights(iter(weights.items()) if isinstance(weights, dict) else weights(say))
        finally:
            heart.cancel()

    for _ in range(syncs):
        asyncio.run(run())
        say("sent")
    return longest


# What is left.


@contextlib.contextmanager
def address() -> Iterator[str]:
    """A ZeroMQ address of verl's naming in a directory of its own (short: a socket path has at most 107 bytes)."""
    with tempfile.TemporaryDirectory(prefix="ws") as directory:
        yield f"ipc://{directory}/rl-colocate-zmq-0-replica-0-rank-0.sock"


def left_behind(endpoint: str) -> list[str]:
    """What a sync with the shim has left: the socket file, named segments of processes that are gone."""
    path = endpoint.removeprefix("ipc://")
    files = [path] if os.path.exists(path) else []
    return files + [name for name in segments("xpu-shim-ws-") if not os.path.exists(f"/proc/{name.split('-')[4]}")]


def segments(prefix: str) -> list[str]:
    return [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]
