"""What tests make the two ends do; module-level functions, because they travel to another process."""

from __future__ import annotations

import os
import signal
import time

import torch

MIB = 1 << 20


def mixed() -> dict[str, torch.Tensor]:
    """One tensor of each kind that has been trouble, each far smaller than 1 MiB."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(24, 40, generator=generator)
    weights = {
        "norm.odd_bytes": base[0, :3].to(torch.float8_e4m3fn),
        "weight.bf16": base.to(torch.bfloat16),
        "scalar": torch.tensor(1.5),
        "scalar.bf16": torch.tensor(-2.5, dtype=torch.bfloat16),
        "empty": torch.empty(0, 7),
        "transposed": base.t(),
        "expanded": base[:1].expand(9, 40),
        "strided": base[::2, ::3],
        "one.strided": base[0, ::2][:1],
        "one.strided.bf16": base.to(torch.bfloat16)[::7, ::5][:1, :1],
        "nan": torch.tensor([float("nan"), float("inf"), -0.0]),
        "conjugated": torch.randn(5, dtype=torch.complex64, generator=generator).conj(),
        "complex128": torch.randn(4, 6, dtype=torch.complex128, generator=generator).t(),
        "parameter": torch.nn.Parameter(base.clone()),
    }
    bits = torch.randint(0, 256, (6, 32), dtype=torch.uint8, generator=generator)
    for name in DTYPES:
        dtype = getattr(torch, name, None)
        if dtype is not None:
            data = bits & 1 if dtype is torch.bool else bits
            weights[f"dtype.{name}"] = data.view(dtype)
    return weights


#: Those a tensor can have that are not quantised with side data.
DTYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex32",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
    "bits8",
    "bits16",
    "bits1x8",
    "bits2x4",
    "bits4x2",
    "int1",
    "int2",
    "int3",
    "int4",
    "int5",
    "int6",
    "int7",
    "uint1",
    "uint2",
    "uint3",
    "uint4",
    "uint5",
    "uint6",
    "uint7",
]


def plain(count: int = 8, kib: int = 512) -> dict[str, torch.Tensor]:
    """Equal-sized float32 tensors with different contents."""
    return {f"layer.{i}.weight": torch.full((kib * 256,), float(i + 1)) for i in range(count)}


def for_verl(say):
    """`mixed` without the smallest integers (what stands in for the copy to a device has no kernel for them), and more.

    Made where it is called: torch drops the conjugate bit of a tensor it hands to another process.
    """
    yield from ((name, tensor) for name, tensor in mixed().items() if "int" not in name or "t8" in name)
    yield from plain(6).items()


def generated(say, count: int, kib: int):
    """`plain`, made where it is called."""
    yield from plain(count, kib).items()


def raise_at_third(say, weights, is_last) -> None:
    for name, _ in weights:
        if name == "layer.3.weight":
            raise ValueError(f"shape mismatch in {name}")


def die(say, weights, is_last) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exit_after(say, weights, is_last) -> None:
    say("loaded")


KEPT: list = []


def keep(say, weights, is_last) -> None:
    KEPT.extend(weights)


def say_names(say, weights, is_last) -> None:
    say(([name for name, _ in weights], is_last))


def slow(say, weights, is_last) -> None:
    time.sleep(1.0)


def hang(say, weights, is_last) -> None:
    say("hanging")
    time.sleep(600)


def failing(say):
    """Weights whose production fails."""
    yield from list(plain(3).items())
    raise RuntimeError("the trainer could not gather layer.3.weight")


def announced(say):
    """Weights that say how far they are; more than the slots hold, so that the other end's pace counts."""
    for name, tensor in plain(200, 256).items():
        say(name)
        yield name, tensor


def dying(say):
    for name, tensor in plain(8).items():
        if name == "layer.5.weight":
            os.kill(os.getpid(), signal.SIGKILL)
        yield name, tensor


def refilled(say):
    """One buffer for all: the next tensor overwrites the one before."""
    buffer = torch.empty(300_000)
    for i in range(12):
        buffer.data.fill_(float(i))
        yield f"w{i}", buffer.view(300, 1000)


def stalled(say):
    yield "first", torch.ones(10)
    say("stalling")
    time.sleep(600)


def generated_few(say):
    yield from plain(4).items()


def nothing(say) -> None:
    pass


def no_adapter(say) -> None:
    raise ValueError("adapter 1 is not loaded")


def engine_died():
    time.sleep(0.5)
    raise RuntimeError("EngineCore encountered an issue")


def stay():
    time.sleep(600)
