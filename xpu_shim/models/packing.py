"""Sequences packed into one row: is every sequence masked from the others, and can the row be split among ranks?"""

from __future__ import annotations

import copy
from typing import Any

from xpu_shim.core.log import logger, warn_once
from xpu_shim.models import attention

#: Models whose attention verl replaces by its own, which separates sequences by their position ids.
MASKED_BY_VERL = frozenset({"qwen2_vl", "qwen2_5_vl", "glm4v"})

#: Sizes of the model that is asked in place of the real one. Whole heads of 16; everything else as small as it gets.
_SMALL = {
    "vocab_size": 32,
    "hidden_size": 32,
    "head_dim": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "qk_head_dim": 32,
    "v_head_dim": 16,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_experts": 2,
    "n_routed_experts": 2,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "num_hidden_layers": 2,
    "max_window_layers": 2,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}

#: Greatest difference of hidden states that rounding explains; a leak shows as about 1.
_TOLERANCE = 1e-4

_log = logger("xpu_shim.models")
_known: dict[tuple[str, str | None], str | None] = {}


class SequenceParallelError(ValueError):
    """Ulysses sequence parallelism was asked for with an attention that would see only its own part of a sequence."""


def leak(config: Any) -> str | None:
    """Whether a model with this transformers config mixes sequences that are packed into one row.

    A small model of the same class, with the same attention implementation, is run on two packed sequences and on each
    alone. That is decided by the class and by the installed transformers, so it is asked once per class and attention.

    Returns:
        None if they agree; else the reason, or why it could not be found out.
    """
    text = config.get_text_config()
    key = (str(getattr(text, "model_type", type(text).__name__)), getattr(text, "_attn_implementation", None))
    if key not in _known:
        try:
            difference = _difference(text, key[1])
            _known[key] = None if difference <= _TOLERANCE else f"its outputs differ by {difference:.2g}"
        except Exception as error:  # remote code and new architectures may refuse the small sizes in any way
            _log.debug("the packing check of %s failed", key[0], exc_info=True)
            _known[key] = f"this could not be checked ({type(error).__name__}: {error})"
    return _known[key]


def _difference(config: Any, name: str | None) -> float:
    """Greatest difference between packed and separate hidden states of a small model."""
    import torch
    from transformers import AutoModel

    small = copy.deepcopy(config)
    heads = getattr(config, "num_attention_heads", None)
    equal_heads = getattr(config, "num_key_value_heads", None) == heads
    for field, size in _SMALL.items():
        if getattr(small, field, None) is not None:
            setattr(small, field, size)
    if equal_heads and hasattr(small, "num_key_value_heads"):
        small.num_key_value_heads = _SMALL["num_attention_heads"]
    if getattr(small, "layer_types", None):
        small.layer_types = list(small.layer_types)[:2]
    for scaling in ("rope_scaling", "rope_parameters"):
        value = getattr(small, scaling, None)
        if isinstance(value, dict) and "mrope_section" in value:
            value["mrope_section"] = [4, 2, 2]
    small._attn_implementation = name
    first, second = 5, 7
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
        torch.manual_seed(0)
        model = AutoModel.from_config(small, dtype=torch.float32).eval()
        for parameter in model.parameters():
            # Fresh weights are small and attention nearly uniform; a leak must show far above rounding.
            torch.nn.init.normal_(parameter, std=0.3)
        tokens = torch.randint(1, 32, (1, first + second))
        positions = torch.cat([torch.arange(first), torch.arange(second)]).unsqueeze(0)

        def run(part: slice) -> torch.Tensor:
            return model(
                input_ids=tokens[:, part], position_ids=positions[:, part], attention_mask=None, use_cache=False
            ).last_hidden_state

        packed = run(slice(None))
        separate = torch.cat([run(slice(0, first)), run(slice(first, None))], dim=1)
    difference = (packed - separate).abs().max().item()
    if difference != difference:
        raise FloatingPointError("the small model computes NaN")
    return difference


def may_pack(config: Any) -> bool:
    """Whether to remove padding from this model's batches; warns once where the user's wish is not followed."""
    name = getattr(config, "_attn_implementation", None)
    if is_flash_backend(name) or getattr(config, "model_type", None) in MASKED_BY_VERL:
        return True
    reason = leak(config)
    if reason is None:
        return True
    warn_once(
        f"use_remove_padding=True is switched off for {getattr(config, 'model_type', type(config).__name__)} with "
        f"attn_implementation={name}: packed sequences would see each other: {reason}. Batches are padded instead, "
        "which computes the same and needs more memory. A newer transformers or another attn_implementation may allow "
        "packing."
    )
    return False


def is_flash_backend(name: Any) -> bool:
    """Whether an attention implementation goes through transformers' flash attention path (installed or hub kernel)."""
    return attention.is_flash(name) or (isinstance(name, str) and "flash" in name and "/" in name)


def check_sequence_parallel(size: int, config: Any) -> None:
    """Refuse Ulysses sequence parallelism where it would compute something else.

    Args:
        size: ranks that share a sequence.
        config: the model's transformers config.

    Raises:
        SequenceParallelError: if `size` is above 1 without a flash attention.
    """
    name = getattr(config, "_attn_implementation", None)
    if size <= 1 or is_flash_backend(name):
        return
    raise SequenceParallelError(
        f"ulysses_sequence_parallel_size={size} needs a flash attention: verl exchanges heads and sequence parts only "
        f"inside transformers' flash attention path, so with attn_implementation={name} every rank would attend to its "
        "own part of the sequence alone and training would go wrong without an error. Set "
        "ulysses_sequence_parallel_size=1, or install the package `kernels` with an XPU build of flash attention and "
        "set override_config.attn_implementation=flash_attention_2."
    )
