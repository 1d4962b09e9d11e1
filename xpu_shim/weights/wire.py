"""Frames on the private channel: a fixed head, a JSON body, optionally raw bytes.

Both ends run on one host and byte order, but the head is in network order all the same. Nothing is pickled here.
"""

from __future__ import annotations

import enum
import json
import struct
import traceback
from dataclasses import dataclass, field
from typing import Any

#: Version of everything said on the channel; a peer with another one is treated as a peer without the shim.
PROTOCOL = 1

#: Largest body accepted; far above what a slot full of empty tensors can produce.
MAX_BODY = 256 << 20

_HEAD = struct.Struct("!4sB3xIQ")
_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().decode
_MAGIC = b"XSWS"


class Kind(enum.IntEnum):
    """What a frame says. R: sent by the receiver, S: by the sender."""

    HELLO = 1  #: R: token, pid, how many bytes it wants per call of its callback
    SEGMENT = 2  #: S: size and slots of the shared memory, its descriptor attached; no descriptor: bytes follow in DATA
    DATA = 3  #: S: a slot is filled; which tensors begin in it
    END = 4  #: S: that was the last slot; totals
    FREE = 5  #: R: a slot is copied out
    LOADED = 6  #: R: the callback returned for a group of tensors
    DONE = 7  #: R: all is loaded; totals
    ERROR = 8  #: either: this end failed


@dataclass
class Frame:
    """One message; `descriptors` are open file descriptors now owned by whoever holds the frame."""

    kind: Kind
    body: dict[str, Any]
    payload: bytes = b""
    descriptors: list[int] = field(default_factory=list)


class WireError(ValueError):
    """Bytes on the channel that are no frame."""


def head(kind: Kind, body: dict[str, Any], payload_length: int = 0) -> bytes:
    """A frame's head and body as bytes; `payload_length` raw bytes are to follow."""
    text = _encode(body).encode()
    return _HEAD.pack(_MAGIC, kind, len(text), payload_length) + text


def parse(buffer: bytearray) -> Frame | None:
    """Take one whole frame off the front of `buffer`; None, and nothing taken, if it is not all there yet.

    Raises:
        WireError: if the bytes are not a frame.
    """
    if len(buffer) < _HEAD.size:
        return None
    magic, kind, body_length, payload_length = _HEAD.unpack_from(buffer)
    if magic != _MAGIC or body_length > MAX_BODY:
        raise WireError(f"no weight sync frame: {bytes(buffer[:16])!r}")
    start = _HEAD.size + body_length
    end = start + payload_length
    if len(buffer) < end:
        return None
    body = _decode(buffer[_HEAD.size : start].decode())
    payload = b""
    if payload_length:
        with memoryview(buffer) as view:
            payload = bytes(view[start:end])
    del buffer[:end]
    return Frame(Kind(kind), body, payload)


def report(error: BaseException, tensor: str, offset: int) -> dict[str, Any]:
    """What the other end is told of an exception here."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {
        "type": type(error).__name__,
        "message": str(error)[:20_000],
        "traceback": text[-60_000:],
        "tensor": tensor,
        "offset": offset,
    }
