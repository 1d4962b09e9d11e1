"""`XPU_SHIM_WEIGHT_SYNC_VERIFY=1`: checksums at both ends, and the served model taken apart."""

from __future__ import annotations

from typing import ClassVar

import actions
import peers
import pytest
import torch
from torch import nn

from xpu_shim.core import ledger
from xpu_shim.weights import verify

VERIFY = {"XPU_SHIM_WEIGHT_SYNC_VERIFY": "1"}


class Fused(nn.Module):
    """A linear layer with the attributes vLLM's fused projections have."""

    def __init__(self, rows: int, columns: int, **attributes) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, columns, dtype=torch.bfloat16))
        vars(self).update(attributes)


class Served(nn.Module):
    """One rank of a small model as vLLM keeps it: fused projections, a padded vocabulary."""

    packed_modules_mapping: ClassVar = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 8, dtype=torch.bfloat16)
        self.embed.shard_indices = type("Indices", (), {"org_vocab_start_index": 0, "org_vocab_end_index": 60})
        self.qkv_proj = Fused(32, 8, num_heads=4, num_kv_heads=2, head_size=4)
        self.gate_up_proj = Fused(24, 8, output_sizes=[12, 12])
        self.norm = Fused(1, 8)
        self.layer = nn.ModuleDict({"qkv_proj": self.qkv_proj, "gate_up_proj": self.gate_up_proj})


def checkpoint(dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    return {
        "embed.weight": random(60, 8),
        "layer.q_proj.weight": random(16, 8),
        "layer.k_proj.weight": random(8, 8),
        "layer.v_proj.weight": random(8, 8),
        "layer.gate_proj.weight": random(12, 8),
        "layer.up_proj.weight": random(12, 8),
        "norm.weight": random(1, 8),
        "elsewhere": random(3),
    }


#: Where each tensor of the checkpoint belongs: parameter and first row.
PLACES = {
    "embed.weight": ("embed.weight", 0),
    "layer.q_proj.weight": ("layer.qkv_proj.weight", 0),
    "layer.k_proj.weight": ("layer.qkv_proj.weight", 16),
    "layer.v_proj.weight": ("layer.qkv_proj.weight", 24),
    "layer.gate_proj.weight": ("layer.gate_up_proj.weight", 0),
    "layer.up_proj.weight": ("layer.gate_up_proj.weight", 12),
    "norm.weight": ("norm.weight", 0),
}


def load(model: Served, items: list, places: dict) -> None:
    for name, tensor in items:
        if name in places:
            parameter, row = places[name]
            model.get_parameter(parameter).data[row : row + tensor.shape[0]] = tensor


class Mapper:
    """As vLLM's since it knows the fused projections itself."""

    PARTS: ClassVar = {
        "q_proj": ("qkv_proj", "q"),
        "k_proj": ("qkv_proj", "k"),
        "v_proj": ("qkv_proj", "v"),
        "gate_proj": ("gate_up_proj", 0),
        "up_proj": ("gate_up_proj", 1),
    }

    def _map_name_with_shard(self, name: str):
        for part, (fused, shard) in self.PARTS.items():
            if part in name:
                return name.replace(part, fused), shard
        return name, None


def receive(say, endpoint, places, mapper=None):
    """Receive into a model, as the rollout's worker does."""
    loaded = peers.module("shim", "receiver")
    model = Served()
    model.hf_to_vllm_mapper = mapper
    receiver = loaded.BucketedWeightReceiver(endpoint, torch.device("cpu"), use_shm=True)
    say("ready")
    with verify.serving(model):
        receiver.receive_weights(lambda items, last: load(model, items, places))
    return ledger.notes


def send(say, endpoint, weights):
    peers.sender(say, "shim", endpoint, weights() if callable(weights) else weights, 1)
    return ledger.notes


@pytest.mark.parametrize("mapper", [None, Mapper()], ids=["listed", "mapped"])
@pytest.mark.parametrize(("dtype", "rounded"), [(torch.bfloat16, ""), (torch.float32, "bfloat16")])
def test_both_ends_agree(endpoint, start, dtype, rounded, mapper):
    """verl's trainer keeps float32 by default, and vLLM serves bfloat16."""
    receiver = start(receive, endpoint, PLACES, mapper, environment=VERIFY)
    assert receiver.said() == "ready"
    sender = start(send, endpoint, checkpoint(dtype), environment=VERIFY).outcome()
    assert sender.error == "", sender.text
    (sent,), (received,) = sender.value["weight_sync_sender"], receiver.outcome().value["weight_sync_receiver"]
    assert sent == received  # also the digests, which each end made by itself
    assert (sent["tensors"], sent["equal_in_model"], sent["not_comparable"]) == (8, 7, ["elsewhere"])
    assert sent["equal_to_sender"]
    assert sent["rounded_to"] == rounded


@pytest.mark.parametrize("name", sorted(PLACES))
def test_a_loader_that_leaves_one_out(name, endpoint, start):
    places = {key: value for key, value in PLACES.items() if key != name}
    receiver = start(receive, endpoint, places, environment=VERIFY)
    assert receiver.said() == "ready"
    sender = start(send, endpoint, checkpoint(), environment=VERIFY).outcome()
    assert sender.error == "PeerFailed"
    assert "WeightsDiffer: weight sync: the model that is served differs" in sender.text
    assert f"in 1 of 8 tensors: {name}." in sender.text
    assert receiver.outcome().error == "WeightsDiffer"


@pytest.mark.parametrize("mapper", [None, Mapper()], ids=["listed", "mapped"])
def test_swapped_parts_of_a_fused_projection(endpoint, start, mapper):
    """Same shapes, so no loader complains."""
    places = {**PLACES, "layer.k_proj.weight": PLACES["layer.v_proj.weight"]}
    places["layer.v_proj.weight"] = PLACES["layer.k_proj.weight"]
    receiver = start(receive, endpoint, places, mapper, environment=VERIFY)
    assert receiver.said() == "ready"
    sender = start(send, endpoint, checkpoint(), environment=VERIFY).outcome()
    assert "in 2 of 8 tensors: layer.k_proj.weight, layer.v_proj.weight." in sender.text


def test_every_kind_of_tensor_has_a_checksum(endpoint, start):
    receiver = start(peers.receiver, "shim", endpoint, environment=VERIFY)
    assert receiver.said() == "ready"
    sender = start(send, endpoint, actions.mixed, environment=VERIFY).outcome()
    assert sender.error == "", sender.text
    (note,) = sender.value["weight_sync_sender"]
    assert note["tensors"] == len(actions.mixed())
    assert receiver.outcome().value == peers.digests(actions.mixed())


def test_a_receiver_that_does_not_verify_is_said_once(endpoint, start):
    receiver = start(peers.receiver, "shim", endpoint)
    assert receiver.said() == "ready"
    sender = start(send, endpoint, checkpoint(), environment=VERIFY).outcome()
    assert sender.error == ""
    assert sender.value == {}


def test_a_checksum_tells_bits_shapes_and_dtypes_apart():
    one = torch.tensor([0.0, 1.0])
    others = [
        torch.tensor([-0.0, 1.0]),
        one.reshape(2, 1),
        one.view(torch.int32),
        torch.tensor([float("nan"), 1.0]),
    ]
    assert len({verify.checksum(tensor) for tensor in [one, *others]}) == 5
    assert verify.checksum(one) == verify.checksum(torch.stack([one, one], 1)[:, 0])


def test_a_model_in_another_dtype_holds_the_rounded_weights():
    model = nn.Linear(4, 4, bias=False, dtype=torch.bfloat16)
    weight = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
    served = verify._Served(model)
    model.weight.data.copy_(weight)
    assert served.holds("weight", weight) is True
    model.weight.data.view(torch.int16)[1, 1] += 1  # the next number in bfloat16
    assert served.holds("weight", weight) is False
    model.weight.data = model.weight.data.to(torch.float8_e4m3fn)  # quantised: its loader may have scaled
    assert served.holds("weight", weight) is None


def test_shards_of_two_ranks():
    class Rank(verify._Served):
        def __init__(self, model: nn.Module, rank: int) -> None:
            super().__init__(model)
            self._rank, self._ranks = rank, 2

    weight = torch.arange(64.0).reshape(8, 8).to(torch.bfloat16)
    for rank in (0, 1):
        by_row, by_column = nn.Linear(8, 4, bias=False), nn.Linear(4, 8, bias=False)
        by_row.weight = nn.Parameter(weight[4 * rank : 4 * rank + 4].clone())
        by_column.weight = nn.Parameter(weight[:, 4 * rank : 4 * rank + 4].clone())
        model = nn.ModuleDict({"rows": by_row, "columns": by_column})
        served, other = Rank(model, rank), Rank(model, 1 - rank)
        for name in ("rows.weight", "columns.weight"):
            assert served.holds(name, weight) is True
            assert other.holds(name, weight) is False
