"""`xpu-shim doctor --log FILE`: known failures in a log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from xpu_shim.doctor.signatures import Signature, find

#: Longest part of a line that is looked at: progress bars write megabytes without a line feed.
_LONGEST = 20_000


class Hit(NamedTuple):
    """A known failure in a log."""

    signature: Signature
    #: Number of the first line that names it, from 1, and the line.
    line: int
    text: str
    count: int  # type: ignore[assignment]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        item = self.signature
        return {
            "id": item.id,
            "line": self.line,
            "text": self.text,
            "count": self.count,
            "cause": item.cause,
            "fix": item.cure,
            "links": list(item.links),
            "consequence": item.consequence,
        }


def scan(lines: Iterable[str]) -> list[Hit]:
    """The known failures, causes before consequences and then in order of appearance."""
    hits: dict[str, Hit] = {}
    for number, line in enumerate(lines, 1):
        for item in find(line[:_LONGEST]):
            known = hits.get(item.id)
            if known is None:
                hits[item.id] = Hit(item, number, line.strip()[:300], 1)
            else:
                hits[item.id] = known._replace(count=known.count + 1)
    return sorted(hits.values(), key=lambda hit: (hit.signature.consequence, hit.line))


def scan_file(path: str) -> list[Hit]:
    """`scan` of a file; "-" is standard input.

    Raises:
        OSError: if it cannot be read.
    """
    import sys

    if path == "-":
        return scan(sys.stdin)
    with open(path, encoding="utf-8", errors="replace") as file:
        return scan(file)
