"""What Intel GPUs can compute at most, for verl's model FLOPS utilisation (MFU)."""

from __future__ import annotations

import re
from typing import Any, NamedTuple


class Figure(NamedTuple):
    """Peak of one card.

    Attributes:
        flops: dense bfloat16 operations a second on the matrix engines (XMX), all tiles together.
        vector_engines: of the whole card; torch reports the tiles of one card as devices of their own in the driver's
            flat hierarchy, with the vector engines of one tile.
        source: where the figure is from.
    """

    flops: float
    vector_engines: int
    source: str


def _xmx(cores: int, per_clock: int, hertz: float) -> float:
    return cores * per_clock * hertz


#: Intel publishes dense INT8 figures of Arc B cards; an XMX engine does half as many bfloat16 operations a clock.
FIGURES = {
    r"Arc\(TM\) B580\b": Figure(
        233e12 / 2, 160, "half of 'GPU Peak TOPS (Int8)' 233, Intel's specifications of Arc B580 Graphics"
    ),
    r"Arc\(TM\) Pro B60\b": Figure(
        197e12 / 2, 160, "half of 'GPU Peak TOPS (Int8)' 197, Intel's specifications of Arc Pro B60 Graphics"
    ),
    r"Arc\(TM\) Pro B70\b": Figure(
        367e12 / 2, 256, "half of 'GPU Peak TOPS (Int8)' 367, Intel's specifications of Arc Pro B70 Graphics"
    ),
    r"Arc\(TM\) A770\b(?!M)": Figure(
        _xmx(32, 2048, 2.1e9),
        512,
        "32 Xe cores of 16 XMX engines at 2100 MHz, Intel's specifications of Arc A770 Graphics; 128 operations a "
        "clock and engine, Intel's oneAPI GPU optimization guide, Xe-HPG",
    ),
    r"Data Center GPU Max 1100\b": Figure(
        _xmx(56, 4096, 1.55e9),
        448,
        "56 Xe cores at 1550 MHz, Intel's specifications of Data Center GPU Max 1100; 4096 operations a clock and "
        "core, Intel Data Center GPU Max Series Technical Overview",
    ),
    r"Data Center GPU Max 1550\b": Figure(
        _xmx(128, 4096, 1.6e9),
        1024,
        "128 Xe cores at 1600 MHz, Intel's specifications of Data Center GPU Max 1550; 4096 operations a clock and "
        "core, Intel Data Center GPU Max Series Technical Overview",
    ),
}


def is_intel(name: str) -> bool:
    """Whether a device name is one of Intel's."""
    return name.startswith("Intel(R)")


def of_device(name: str, vector_engines: int | None = None) -> float:
    """Peak dense bfloat16 operations a second.

    Args:
        name: as the driver reports it, "Intel(R) Arc(TM) Pro B60 Graphics".
        vector_engines: of the device torch shows; None for the whole card.

    Returns:
        The figure, of the part of the card that the device is; infinity for a card without one here.
    """
    for pattern, figure in FIGURES.items():
        if re.search(pattern, name):
            part = 1.0 if not vector_engines else min(1.0, vector_engines / figure.vector_engines)
            return figure.flops * part
    return float("inf")


def vector_engines(properties: Any) -> int | None:
    """The number of vector engines in torch's device properties, or None."""
    return getattr(properties, "gpu_eu_count", None)
