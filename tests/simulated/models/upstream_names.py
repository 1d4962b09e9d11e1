"""A pytest plugin for verl's own tests on a device they do not know; the tests themselves are not changed.

They import the padding functions for CUDA and Ascend only, ask for flash_attention_2 by name, and build layers of full
width. Here the padding functions are verl's on every device, the attention is sdpa, and layers are narrow.
"""

from __future__ import annotations

import builtins


def pytest_configure(config) -> None:
    import verl  # noqa: F401 - the shim's hook waits for it
    from transformers import AutoModelForCausalLM, AutoModelForTokenClassification
    from verl.utils import attention_utils

    for name in ("index_first_axis", "pad_input", "rearrange", "unpad_input"):
        setattr(builtins, name, getattr(attention_utils, name))
    for auto in (AutoModelForCausalLM, AutoModelForTokenClassification):
        auto.from_config = narrow(auto.from_config)


def narrow(original):
    """`from_config` for a narrow model with sdpa."""

    def from_config(config, **arguments):
        config.hidden_size, config.intermediate_size, config.vocab_size = 64, 128, 512
        config.num_attention_heads, config.num_key_value_heads, config.head_dim = 4, 2, 16
        config.pad_token_id = config.bos_token_id = config.eos_token_id = 0
        return original(config=config, **{**arguments, "attn_implementation": "sdpa"})

    return from_config
