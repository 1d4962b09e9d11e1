"""Log-probabilities of packed batches without flash-attn."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.rmpad_log_probs",
    targets=(
        "verl.utils.torch_functional:log_probs_from_logits_response_rmpad",
        "verl.utils.torch_functional:log_probs_from_logits_all_rmpad",
    ),
    why=(
        "The first imports flash-attn (`ModuleNotFoundError: No module named 'flash_attn'`); the second knows CUDA and "
        "Ascend only (`UnboundLocalError: cannot access local variable 'pad_input'`)."
    ),
    how="Both are computed with verl's own `logprobs_from_logits` and the shim's padding functions.",
    upstream=("https://github.com/volcengine/verl/pull/7172",),
    remove_when="both take their padding functions from verl.utils.attention_utils on every device.",
    versions={"verl": ("0.7.1", "0.10")},
    processes=("driver", "worker"),
    required=False,
    replaces_body=True,
)


def probe(module) -> str | None:
    """Right already if both work on one token (they do where flash-attn is there)."""
    import torch

    ids, logits = torch.zeros(1, 2, dtype=torch.long), torch.zeros(2, 2)
    try:
        module.log_probs_from_logits_response_rmpad(ids, torch.ones_like(ids), logits, 1)
        module.log_probs_from_logits_all_rmpad(ids, logits, torch.arange(2), 1, 2, 1)
    except (ImportError, UnboundLocalError):
        return None
    return "both work without the shim"


def apply(install: Install) -> None:
    module = install.module
    install.replace("log_probs_from_logits_response_rmpad", lambda original: from_padded(module))
    install.replace("log_probs_from_logits_all_rmpad", lambda original: from_packed(module))


def from_padded(module):
    def log_probs_from_logits_response_rmpad(input_ids, attention_mask, logits_rmpad, response_length):
        from xpu_shim.models import padding

        batch, seqlen = input_ids.shape
        packed, indices, *_ = padding.unpad_input(input_ids.unsqueeze(-1), attention_mask)
        return response(module, packed.squeeze(-1), logits_rmpad, indices, batch, seqlen, response_length)

    return log_probs_from_logits_response_rmpad


def from_packed(module):
    def log_probs_from_logits_all_rmpad(input_ids_rmpad, logits_rmpad, indices, batch_size, seqlen, response_length):
        packed = input_ids_rmpad.reshape(-1)
        return response(module, packed, logits_rmpad, indices, batch_size, seqlen, response_length)

    return log_probs_from_logits_all_rmpad


def response(module, packed, logits, indices, batch, seqlen, length):
    """Log-probability of every response token (batch, length) float; packed (n,), logits (n, vocabulary)."""
    from xpu_shim.models import padding

    # Position t predicts token t + 1; what the last token of a sequence "predicts" is cut off by the slice below.
    following = packed.roll(-1, 0)
    # verl's function stacks rows and refuses a batch without any token; the sum keeps that batch in the graph.
    values = module.logprobs_from_logits(logits=logits, labels=following) if packed.numel() else logits.sum(-1)
    return padding.pad_input(values.unsqueeze(-1), indices, batch, seqlen).squeeze(-1)[:, -length - 1 : -1]
