"""What the scripts on the ranks share: the process group, test data, patches on and off, and a probe below c10d."""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from simxpu import probe

PATCHES = ("torch.fsdp2_sum", "torch.process_group_reductions", "torch.functional_reductions")

#: Shapes by name; the first dimension is divisible by 2 and 4 where a route scatters it.
SHAPES = {"plain": (8, 3), "scalar": (), "one": (1,), "odd": (31,), "strided": (4, 8), "empty": (0,)}


def counted() -> dict[str, int]:
    """Reductions that reached the simulated backend since the last time: "all_reduce:sum" to a number."""
    counts = {name: number for name, number in probe.counts().items() if ":" in name}
    probe.reset()
    return counts


class Context:
    """One rank."""

    def __init__(self) -> None:
        faulthandler.dump_traceback_later(float(os.environ["LIMIT"]))
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        torch.set_num_threads(1)
        torch.xpu.set_device(self.rank)
        dist.init_process_group(
            "cpu:gloo,xpu:xccl", init_method=os.environ["RENDEZVOUS"], rank=self.rank, world_size=self.ranks
        )
        self.group = dist.group.WORLD
        self.cpu_group = dist.new_group(backend="gloo")

    def device(self, kind: str) -> torch.device:
        """ "cpu", or this rank's xpu."""
        return torch.device("xpu", self.rank) if kind == "xpu" else torch.device("cpu")

    def tensor(self, kind: str, dtype: torch.dtype = torch.float32, shape: str = "plain", seed: int = 0) -> Any:
        """This rank's input: the same numbers on both devices, others on every rank."""
        size = SHAPES[shape]
        generator = torch.Generator().manual_seed(100 * seed + self.rank)
        if dtype.is_floating_point or dtype.is_complex:
            data = torch.randn(size, generator=generator, dtype=torch.float32 if dtype.is_floating_point else dtype)
        else:
            data = torch.randint(-20, 20, size, generator=generator)
        data = data.to(self.device(kind), dtype)
        return data.t() if shape == "strided" else data

    @cached_property
    def half(self) -> Any:
        """A group of this rank and a neighbour."""
        pairs = [dist.new_group([first, first + 1]) for first in range(0, self.ranks, 2)]
        return pairs[self.rank // 2]

    def mesh(self, kind: str, shape: tuple[int, ...] | None = None) -> Any:
        """A device mesh, made once."""
        from torch.distributed.device_mesh import init_device_mesh

        shape = shape or (self.ranks,)
        assert math.prod(shape) == self.ranks
        meshes = self.__dict__.setdefault("meshes", {})
        if (kind, shape) not in meshes:
            names = ("replicate", "shard")[-len(shape) :]
            meshes[kind, shape] = init_device_mesh(kind, shape, mesh_dim_names=names)
        return meshes[kind, shape]


def patch() -> None:
    """Install the patches under test, as the start-up hook would."""
    from xpu_shim.core.apply import apply_patch

    for name in PATCHES:
        apply_patch(name)


def unpatch() -> None:
    """Take them back."""
    from xpu_shim.core.apply import remove_patch

    for name in reversed(PATCHES):
        remove_patch(name)


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """The patches, for the length of a block."""
    patch()
    try:
        yield
    finally:
        unpatch()


def describe(error: BaseException) -> str:
    """An error as one line for a report."""
    return f"{type(error).__name__}: {error}"[:400]


def difference(result: Any, reference: Any) -> float:
    """The largest difference of two lists of tensors, relative to the largest number; inf if shapes differ."""
    if len(result) != len(reference):
        return math.inf
    largest = 0.0
    for ours, theirs in zip(result, reference, strict=True):
        ours, theirs = ours.detach().cpu(), theirs.detach().cpu()
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return math.inf
        if ours.numel():
            wide = torch.complex128 if ours.is_complex() else torch.float64
            ours, theirs = ours.to(wide), theirs.to(wide)
            scale = theirs.abs().max().item()
            largest = max(largest, (ours - theirs).abs().max().item() / (scale or 1.0))
    return largest
