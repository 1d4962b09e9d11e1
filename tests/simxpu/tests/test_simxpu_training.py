"""A small Qwen2 trains on the simulated device exactly as on the CPU."""

import copy

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

STEPS = 20


def config(attention: str = "sdpa", **more) -> Qwen2Config:
    c = Qwen2Config(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        **more,
    )
    c._attn_implementation = attention
    return c


def losses(model, device: str, micro_batches: int = 1, **optimizer) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, **optimizer)
    generator = torch.Generator().manual_seed(7)
    result = []
    for _ in range(STEPS):
        tokens = (torch.randint(0, 32, (4, 1), generator=generator) + torch.arange(16)) % 32  # can be learnt
        optimizer.zero_grad()
        total = 0.0
        for part in tokens.chunk(micro_batches):
            part = part.to(device)
            loss = model(input_ids=part, labels=part).loss / micro_batches
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        result.append(total)
    return result


@pytest.mark.parametrize(
    ("attention", "checkpointing", "micro_batches", "optimizer"),
    [
        ("sdpa", False, 1, {"foreach": True}),
        ("eager", False, 1, {"fused": True}),
        ("sdpa", True, 2, {"foreach": False}),
    ],
    ids=["sdpa-foreach", "eager-fused", "checkpointing-accumulation"],
)
def test_losses_of_20_steps_equal_the_cpu(attention, checkpointing, micro_batches, optimizer):
    torch.manual_seed(0)
    reference = Qwen2ForCausalLM(config(attention)).train()
    model = copy.deepcopy(reference).to("xpu:1")
    if checkpointing:
        model.gradient_checkpointing_enable()
    expected = losses(reference, "cpu", micro_batches, **optimizer)
    found = losses(model, "xpu:1", micro_batches, **optimizer)
    assert expected[-1] < expected[0] - 0.05  # it does learn
    assert max(abs(a - b) for a, b in zip(expected, found, strict=True)) < 1e-6
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        # AdamW divides by the root of the second moment: a last bit of a gradient near zero becomes a few 1e-6 here.
        assert (p.detach().cpu() - q).abs().max() < 1e-5


def test_dropout_is_reproducible():
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config(attention_dropout=0.1)).train()
    start = copy.deepcopy(model.state_dict())
    runs = []
    for _ in range(2):
        model.load_state_dict(start)
        torch.manual_seed(3)
        runs.append(losses(model.to("xpu"), "xpu"))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("padded", [False, True])
def test_padding_and_generation(padded):
    torch.manual_seed(0)
    reference = Qwen2ForCausalLM(config()).eval()
    model = copy.deepcopy(reference).to("xpu:1")
    tokens = torch.randint(0, 128, (2, 12))
    mask = torch.ones_like(tokens)
    if padded:
        mask[0, :5] = 0
    expected = reference(input_ids=tokens, attention_mask=mask).logits
    found = model(input_ids=tokens.to("xpu:1"), attention_mask=mask.to("xpu:1")).logits
    assert (expected - found.cpu()).abs().max() < 1e-5
    generate = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    expected = reference.generate(tokens, attention_mask=mask, **generate)
    found = model.generate(tokens.to("xpu:1"), attention_mask=mask.to("xpu:1"), **generate)
    assert found.device.type == "xpu"
    assert torch.equal(expected, found.cpu())


def test_from_pretrained(tmp_path):
    Qwen2ForCausalLM(config()).save_pretrained(tmp_path)
    model = Qwen2ForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).to("xpu:2")
    loss = model(input_ids=torch.ones(1, 4, dtype=torch.long, device="xpu:2")).logits.float().sum()
    loss.backward()
    assert loss.device == torch.device("xpu:2")


def test_aot_eager_compiles():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)).to("xpu")
    compiled = torch.compile(model, backend="aot_eager")
    x = torch.randn(3, 4, device="xpu")
    assert torch.allclose(model(x), compiled(x))
    compiled(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
