"""Proof that a weight sync arrived: checksums of every tensor at both ends, and the served model compared bit by bit.

Only with `XPU_SHIM_WEIGHT_SYNC_VERIFY=1`, because it reads all weights three times more. Three things are compared: what
the trainer gave to the sender, what the receiver gave to the rollout's loader, and what the model the rollout serves
holds after the loader returned, with fused projections and tensor-parallel shards taken apart. A rollout in bfloat16
under a trainer in float32 holds the trainer's weights rounded once; that is what they are compared with then.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch

from xpu_shim.core import ledger
from xpu_shim.weights import tensors
from xpu_shim.weights.errors import WeightsDiffer

#: Most names listed in a message or report.
LISTED = 5

#: A trainer may keep its weights in another of these than the rollout, whose loader then rounds; so does the comparison.
ROUNDED = (torch.float32, torch.bfloat16, torch.float16)

#: vLLM's names for the parts of a fused attention projection.
_POSITIONS = {"q": 0, "k": 1, "v": 2}

_thread = threading.local()


def checksum(tensor: torch.Tensor) -> str:
    """128 bits over dtype, shape and the bytes in row-major order, as hexadecimal digits."""
    tensor = tensor.detach()
    digest = hashlib.blake2b(f"{tensor.dtype} {tuple(tensor.shape)}".encode(), digest_size=16)
    if tensor.nbytes:
        for part in tensors.pieces(tensor, itertools.repeat(64 << 20)):
            target = torch.empty(part.nbytes, dtype=torch.uint8)
            tensors.write(part, target)
            digest.update(memoryview(target.numpy()))  # type: ignore[arg-type]
    return digest.hexdigest()


@contextlib.contextmanager
def serving(model: torch.nn.Module | None) -> Iterator[None]:
    """Name the model that a sync received in this thread loads into.

    Args:
        model: the rollout engine's, or None if it is not known.
    """
    _thread.model = model
    try:
        yield
    finally:
        _thread.model = None


class Check:
    """The receiver's part of one sync."""

    def __init__(self) -> None:
        self.sums: dict[str, str] = {}
        self.served = 0
        #: Names of tensors for which the model has no place that can be taken apart (quantised, fused otherwise).
        self.unknown: list[str] = []
        self.different: list[str] = []
        model = getattr(_thread, "model", None)
        self._model = _Served(model) if model is not None else None

    def received(self, items: list[tuple[str, torch.Tensor]]) -> None:
        """Note the tensors before the loader gets them."""
        self.sums.update((name, checksum(tensor)) for name, tensor in items)

    def loaded(self, items: list[tuple[str, torch.Tensor]]) -> None:
        """Compare them with the model after the loader returned."""
        if self._model is None:
            return
        for name, tensor in items:
            equal = self._model.holds(name, tensor)
            if equal is None:
                self.unknown.append(name)
            elif equal:
                self.served += 1
            else:
                self.different.append(name)

    def finish(self, sent: dict[str, str] | None) -> dict[str, Any]:
        """The result, for the report and for the sender.

        Args:
            sent: the sender's checksums by name; None if it made none.

        Raises:
            WeightsDiffer: if any tensor differs, anywhere.
        """
        if sent is not None:
            changed = [name for name in {**sent, **self.sums} if sent.get(name) != self.sums.get(name)]
            if changed:
                raise WeightsDiffer(
                    f"weight sync: {len(changed)} of {len(sent)} tensors arrived with other bytes than were sent: "
                    f"{', '.join(changed[:LISTED])}. Please report this with the output of `xpu-shim doctor`."
                )
        if self.different:
            raise WeightsDiffer(
                f"weight sync: the model that is served differs from the weights it was given in {len(self.different)} of "
                f"{len(self.sums)} tensors: {', '.join(self.different[:LISTED])}. The rollout's loader did not put them "
                "where they belong, or changed them (quantisation, another dtype)."
            )
        return {
            "tensors": len(self.sums),
            "equal_to_sender": sent is not None,
            "equal_in_model": self.served,
            "not_comparable": self.unknown[:LISTED],
            "rounded_to": self._model.rounded if self._model is not None else "",
            "digest": digest(self.sums),
        }


def digest(sums: dict[str, str]) -> str:
    """One checksum for a set of them, whatever the order."""
    text = "\n".join(f"{name} {value}" for name, value in sorted(sums.items()))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def note(end: str, result: dict[str, Any]) -> None:
    """Add the result of a sync to this process's report.

    Args:
        end: "sender" or "receiver".
        result: see `Check.finish`.
    """
    ledger.note(f"weight_sync_{end}", [*ledger.notes.get(f"weight_sync_{end}", []), result])


class _Served:
    """A vLLM model, by the names its checkpoint has."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._parameters = dict(model.named_parameters(remove_duplicate=False))
        self._packed = getattr(model, "packed_modules_mapping", None) or {}
        self._mapper = getattr(model, "hf_to_vllm_mapper", None)
        state = sys.modules.get("vllm.distributed.parallel_state")
        #: The model's dtype if it is another than the one sent, or "".
        self.rounded = ""
        self._rank, self._ranks = 0, 1
        if state is not None and state.model_parallel_is_initialized():
            self._rank = state.get_tensor_model_parallel_rank()
            self._ranks = state.get_tensor_model_parallel_world_size()

    def holds(self, name: str, tensor: torch.Tensor) -> bool | None:
        """Whether the model holds this rank's part of a tensor bit for bit, in the model's dtype; None if its place is not
        known or it is quantised."""
        region, layer = self._region(*self._place(name))
        if region is None:
            return None
        part = self._part(tensor, region, layer)
        if part is None or part[0].shape != part[1].shape:
            return None
        held, given = part[0], part[1].to(part[0].device)
        if held.dtype != given.dtype:
            if held.dtype not in ROUNDED or given.dtype not in ROUNDED:
                return None
            given = given.to(held.dtype)
            self.rounded = str(held.dtype).removeprefix("torch.")
        mine, theirs = (tensors.flat_bytes(side.contiguous()) for side in (held, given))
        return bool(torch.equal(mine, theirs))

    def _place(self, name: str) -> tuple[str, Any]:
        """The parameter a checkpoint's name means, and which part of it: "q", "k", "v" or a number; None for all of it.

        The mapper of newer vLLM says so; an older one only renames, and the fused projections are listed.
        """
        if hasattr(self._mapper, "_map_name_with_shard"):
            mapped, part = self._mapper._map_name_with_shard(name) or (name, None)  # type: ignore[union-attr]
            if part is not None:
                return mapped, part
            name = mapped
        elif hasattr(self._mapper, "_map_name"):
            name = self._mapper._map_name(name) or name  # type: ignore[union-attr]
        if name not in self._parameters:
            for fused, parts in self._packed.items():
                for position, part in enumerate(parts):
                    whole = name.replace(f".{part}.", f".{fused}.")
                    if whole != name and whole in self._parameters:
                        return whole, position
        return name, None

    def _region(self, name: str, part: Any) -> tuple[torch.Tensor | None, Any]:
        """The rows of a parameter that are meant, and the layer that owns it if they are all."""
        if name not in self._parameters:
            return None, None
        whole, layer = self._parameters[name].data, self._layer(name)
        if part is None:
            return whole, layer
        position, sizes = _POSITIONS.get(part, part) if isinstance(part, str) else part, self._sizes(layer)
        if not isinstance(position, int) or sizes is None or position >= len(sizes) or sum(sizes) != whole.shape[0]:
            return None, None
        return whole.narrow(0, sum(sizes[:position]), sizes[position]), None

    def _layer(self, name: str) -> Any:
        return self._model.get_submodule(name.rpartition(".")[0])

    def _sizes(self, layer: Any) -> list[int] | None:
        """Rows of each part of a fused projection on this rank; replicated heads count once a rank."""
        if hasattr(layer, "num_kv_heads"):
            others = int(layer.num_kv_heads) * int(layer.head_size)
            return [int(layer.num_heads) * int(layer.head_size), others, others]
        sizes = getattr(layer, "output_sizes", None)
        return [int(size) // self._ranks for size in sizes] if sizes else None

    def _part(self, tensor: torch.Tensor, region: torch.Tensor, layer: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
        """What this rank should hold of a tensor, beside where it holds it."""
        if tensor.dim() != region.dim():
            return None
        indices = getattr(layer, "shard_indices", None)
        if indices is not None and tensor.dim():  # a vocabulary, padded at its end
            start, end = indices.org_vocab_start_index, indices.org_vocab_end_index
            return region[: end - start], tensor[start:end]
        for dim in range(tensor.dim()):
            whole, mine = tensor.shape[dim], region.shape[dim]
            if whole == mine:
                continue
            if not mine or whole % mine or self._ranks % (whole // mine):
                return None
            shard = self._rank // (self._ranks // (whole // mine))
            tensor = tensor.narrow(dim, shard * mine, mine)
        return region, tensor
