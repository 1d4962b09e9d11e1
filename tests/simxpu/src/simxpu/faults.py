"""The faults of the real stack that can be switched on, and the reading of SIMXPU_FAULTS.

``SIMXPU_FAULTS`` is a list separated by commas. ``name`` switches a fault on, ``-name`` off (some are on unless
switched off, since real devices always behave so). ``hang`` and ``device_lost`` take numbers, and optionally the rank
they concern:
``hang:all_reduce:3``, ``device_lost:100@1`` (only where the variable RANK is 1).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Fault:
    """One fault, for the reader."""

    name: str
    symptom: str
    report: str  #: where it was reported in public
    default: bool = False
    arguments: str = ""


CATALOGUE = {
    f.name: f
    for f in (
        Fault(
            "avg_abort",
            "every ReduceOp.AVG raises oneCCL's 'average operation is not supported for the scheduler path'",
            "https://github.com/intel/torch-xpu-ops/issues/2361",
        ),
        Fault(
            "avg_double_divide",
            "ReduceOp.AVG of up to 33 elements divides twice by the number of ranks",
            "https://github.com/intel/torch-xpu-ops/issues/3020",
        ),
        Fault(
            "minmax_sum",
            "ReduceOp.MIN and ReduceOp.MAX return the sum",
            "https://github.com/search?q=%22XCCL+%2F+oneCCL+Known+Issues%22&type=code",
        ),
        Fault(
            "premul_refused",
            "ReduceOp.PREMUL_SUM (FSDP2 with a gradient divide factor) raises",
            "https://github.com/pytorch/torchtitan/pull/2332",
        ),
        Fault(
            "mask_frozen",
            "ZE_AFFINITY_MASK and ONEAPI_DEVICE_SELECTOR are read once, at the first use of the device",
            "https://github.com/intel/torch-xpu-ops/issues/2089",
            default=True,
        ),
        Fault(
            "mask_ignored",
            "ZE_AFFINITY_MASK has no effect: every process sees all devices",
            "https://github.com/ray-project/ray/issues/66167",
        ),
        Fault(
            "free_memory_zero",
            "mem_get_info returns (0, total)",
            "https://github.com/vllm-project/vllm/pull/53990",
        ),
        Fault(
            "free_memory_total",
            "mem_get_info returns (total, total) whatever is in use",
            "https://github.com/sgl-project/sglang-omni/pull/994",
        ),
        Fault(
            "free_memory_raises",
            "mem_get_info raises RuntimeError, as on integrated GPUs",
            "https://github.com/vllm-project/vllm/issues/41370",
        ),
        Fault(
            "no_splitting",
            "the backend does not support splitting: a DeviceMesh over a group bound to a device_id cannot be made",
            "https://github.com/pytorch/pytorch/issues/186548",
            default=True,
        ),
        Fault(
            "hang",
            "the n-th call of a collective never ends",
            "https://github.com/uxlfoundation/oneCCL/issues/215",
            arguments=":<collective>:<n>",
        ),
        Fault(
            "masked_group_hang",
            "collectives between ranks that do not see each other's device never end",
            "https://github.com/huggingface/trl/pull/6787",
        ),
        Fault(
            "device_lost",
            "the n-th operation of the process, and every later one, fails with UR_RESULT_ERROR_DEVICE_LOST",
            "https://github.com/intel/llm-scaler/issues/684",
            arguments=":<n>",
        ),
        Fault(
            "nan_fill",
            "fresh device memory holds NaN (all bits set), not zeros",
            "torch.empty promises nothing about its contents",
            default=True,
        ),
        Fault(
            "late_copy",
            "a non-blocking device-to-host copy lands only at the next synchronisation, NaN before",
            "https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html",
        ),
    )
}

#: torch.distributed's names, as far as the process group can tell them apart.
COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "send",
    "recv",
    "barrier",
    "any",
)


@dataclass(frozen=True)
class Hang:
    collective: str
    call: int  #: counted from 1
    rank: int | None = None


@dataclass(frozen=True)
class Faults:
    """What SIMXPU_FAULTS asks for."""

    on: frozenset[str] = frozenset(f.name for f in CATALOGUE.values() if f.default)
    hangs: tuple[Hang, ...] = ()
    device_lost: int = 0  #: operation at which the device goes away; 0 for never
    device_lost_rank: int | None = None
    asked: tuple[str, ...] = field(default=())

    def __contains__(self, name: str) -> bool:
        return name in self.on


def parse(text: str) -> Faults:
    """Read the value of SIMXPU_FAULTS.

    Raises:
        ValueError: an unknown fault, bad arguments, or two faults that exclude each other.
    """

    def refuse(why: str) -> ValueError:
        return ValueError(
            f"SIMXPU_FAULTS={text!r}: {why}. Known faults: "
            + ", ".join(f.name + f.arguments for f in CATALOGUE.values())
            + ". A leading '-' switches one off. `simxpu faults` explains them."
        )

    def number(word: str, entry: str) -> int:
        if not word.isdigit() or int(word) < 1:
            raise refuse(f"{entry!r} needs a number of at least 1")
        return int(word)

    on = {f.name for f in CATALOGUE.values() if f.default}
    hangs: list[Hang] = []
    lost, lost_rank = 0, None
    entries = tuple(e for e in (part.strip() for part in text.split(",")) if e)
    for entry in entries:
        off = entry.startswith("-")
        words, _, rank_text = entry.lstrip("-").partition("@")
        name, *arguments = words.split(":")
        if name not in CATALOGUE:
            raise refuse(f"unknown fault {name!r}")
        if rank_text and (name not in ("hang", "device_lost") or not rank_text.isdigit()):
            raise refuse(f"{entry!r}: '@rank' goes with hang and device_lost only")
        rank = int(rank_text) if rank_text else None
        if len(arguments) != (0 if off else CATALOGUE[name].arguments.count(":")):
            raise refuse(f"{entry!r} should read {name + CATALOGUE[name].arguments}")
        if off:
            on.discard(name)
            hangs = [] if name == "hang" else hangs
            lost = 0 if name == "device_lost" else lost
            continue
        on.add(name)
        if name == "hang":
            if arguments[0] not in COLLECTIVES:
                raise refuse(f"{arguments[0]!r} is not a collective ({', '.join(COLLECTIVES)})")
            hangs.append(Hang(arguments[0], number(arguments[1], entry), rank))
        elif name == "device_lost":
            lost, lost_rank = number(arguments[0], entry), rank
    for one, other in (
        ("avg_abort", "avg_double_divide"),
        ("free_memory_zero", "free_memory_total"),
        ("free_memory_zero", "free_memory_raises"),
        ("free_memory_total", "free_memory_raises"),
    ):
        if one in on and other in on:
            raise refuse(f"{one} and {other} exclude each other")
    return Faults(frozenset(on), tuple(hangs), lost, lost_rank, entries)


def from_environment(env: Mapping[str, str]) -> Faults:
    """As :func:`parse`, of the variable in ``env``."""
    return parse(env.get("SIMXPU_FAULTS", ""))
