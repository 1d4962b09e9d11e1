"""Tiny checkpoints, with a tokenizer of one token a word, written once per test session."""

from __future__ import annotations

import json
import sys
from pathlib import Path

VOCABULARY = 128


def sizes() -> dict[str, object]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
    }


def config(family: str):
    import transformers

    return getattr(transformers, f"{family}Config")(**sizes())


def write(folder: Path, family: str = "Qwen2", **in_config_file: object) -> Path:
    """A checkpoint of `family` ("Qwen2", "Qwen3", "Llama"); further entries go into its config.json."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.manual_seed(0)
    getattr(transformers, f"{family}ForCausalLM")(config(family)).save_pretrained(folder)
    words = {f"t{index}": index for index in range(VOCABULARY - 2)}
    words |= {"<unk>": VOCABULARY - 2, "<eos>": VOCABULARY - 1}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>", pad_token="<eos>"
    ).save_pretrained(folder)
    # transformers 5 names a class here that 4 does not have; both know this one.
    change(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    change(folder / "config.json", **in_config_file)
    return folder


def change(file: Path, **entries: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2])
