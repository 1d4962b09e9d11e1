"""How much memory of a device is free: one answer from the sources there are, without believing any of them blindly.

Every source is wrong on some driver: vLLM's kernel op reports free 0 on an empty card
(https://github.com/vllm-project/vllm/pull/53990), `torch.xpu.mem_get_info` never moves
(https://github.com/pytorch/pytorch/issues/161381), reports everything free while memory is allocated
(https://github.com/sgl-project/sglang-omni/pull/994), another total after a driver update
(https://github.com/vllm-project/vllm/issues/47016), or raises (https://github.com/vllm-project/vllm/issues/41370).
What this process holds itself, and the size of the card, are known for certain; readings are measured by that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Source = tuple[str, Callable[[], tuple[int, int]]]

MIB = 1 << 20

#: A card's usable size differs from the size on its box by what firmware keeps; sources differ by that much.
TOTAL_TOLERANCE = 0.125
#: A source contradicts itself if its own total moves by more than this.
TOTAL_DRIFT = 0.01
#: Growth of this process's allocations that a reading must show. Smaller ones may come out of slack in the driver.
MOVEMENT = 64 * MIB
#: Source of a reading that was worked out.
ARITHMETIC = "arithmetic"
#: Rounding of allocations by the driver: a reading may exceed what arithmetic allows by so much.
SLACK = 16 * MIB


class Reading(NamedTuple):
    """One answer. Sizes in bytes."""

    free: int
    total: int
    #: Where it comes from.
    source: str
    #: Why other sources were not believed, as "source: reason".
    rejected: tuple[str, ...] = ()


class Known(NamedTuple):
    """What is certain when a reading is judged. Sizes in bytes."""

    #: Device memory this process's torch allocator holds.
    reserved: int
    #: Size of the device by its properties; 0 if they do not tell.
    size: int = 0
    #: What all processes hold together as the kernel counts it; None if it does not.
    held: int | None = None
    #: The last believed reading of this device in this process, and what the allocator held then.
    before: Reading | None = None
    reserved_before: int = 0


class NoMemoryReadingError(RuntimeError):
    """No source tells the size of the device; the message has each source's reason."""


def judge(free: int, total: int, known: Known, same_source: bool = True) -> str | None:
    """Why a reading cannot be right, or None if it can.

    Args:
        free: bytes.
        total: bytes.
        known: what is certain.
        same_source: whether the last believed reading came from this source, so that it must have moved since.
    """
    if total <= 0:
        return f"total {_gib(total)}"
    if not 0 <= free <= total:
        return f"free {_gib(free)} of {_gib(total)}"
    if known.size and abs(total - known.size) > TOTAL_TOLERANCE * known.size:
        return f"total {_gib(total)}, but the device has {_gib(known.size)}"
    before = known.before
    if before is not None and same_source and abs(total - before.total) > TOTAL_DRIFT * before.total:
        return f"total changed from {_gib(before.total)} to {_gib(total)}"
    if free + known.reserved > total + SLACK:
        return f"free {_gib(free)} of {_gib(total)} although this process holds {_gib(known.reserved)}"
    if free == 0 and known.reserved < total - SLACK and (known.held is None or known.held < total - SLACK):
        who, size = ("this process holds", known.reserved) if known.held is None else ("all processes hold", known.held)
        return f"free 0 of {_gib(total)} although {who} {_gib(size)}"
    if before is not None and same_source:
        growth = known.reserved - known.reserved_before
        if abs(growth) >= MOVEMENT and free == before.free:
            verb = "allocated" if growth > 0 else "released"
            return f"free stayed at {_gib(free)} although this process {verb} {_gib(abs(growth))}"
    return None


def read(sources: Sequence[Source], known: Known, can_allocate: Callable[[int], bool] | None = None) -> Reading:
    """Free and total memory of a device, from the first source whose reading can be right, else by arithmetic.

    Args:
        sources: name and function of each source; the function returns (free, total) in bytes.
        known: what is certain.
        can_allocate: tries to allocate that many bytes on the device. Asked only where every source says that nothing
            is free and nobody knows who holds it: then the card may really be full.

    Raises:
        NoMemoryReadingError: if no source answers and the device's size is not known.
    """
    rejected: list[str] = []
    zeros: list[Reading] = []
    totals: list[int] = []
    answers = 0
    for name, source in sources:
        try:
            free, total = (int(value) for value in source())
        except Exception as error:
            rejected.append(f"{name}: {type(error).__name__}: {error}".splitlines()[0])
            continue
        answers += 1
        same = known.before is not None and known.before.source == name
        reason = judge(free, total, known, same)
        if reason is None:
            return Reading(free, total, name, tuple(rejected))
        rejected.append(f"{name}: {reason}")
        if total > 0 and judge(total - known.reserved, total, known, same) is None:
            totals.append(total)
        if free == 0:
            zeros.append(Reading(0, total, name))
    everyone = bool(zeros) and len(zeros) == answers and known.held is None
    if everyone and can_allocate is not None and not can_allocate(MOVEMENT):
        return zeros[0]
    total = known.before.total if known.before is not None else totals[0] if totals else known.size
    if total <= 0:
        raise NoMemoryReadingError(
            "no source tells how much memory the device has: " + "; ".join(rejected or ["there is no source"])
        )
    return Reading(_remaining(total, known), total, ARITHMETIC, tuple(rejected))


def _remaining(total: int, known: Known) -> int:
    """Free memory worked out: from what all processes hold, else from the last reading and what was allocated since,
    else what this process's allocator does not hold.
    """
    if known.held is not None:
        free = total - max(known.held, known.reserved)
    elif known.before is not None:
        free = known.before.free - (known.reserved - known.reserved_before)
    else:
        free = total - known.reserved
    return max(0, min(free, total - known.reserved))


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB"
