"""A model of a few thousand weights, its tokenizer, and chat data: what the stock SFT command needs, made in a second.

python tiny_sft.py DIRECTORY        writes DIRECTORY/{model,train.parquet,val.parquet}
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }} <eos> {% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


def write_model(folder: Path) -> None:
    """A two-layer Qwen2 and a tokenizer of the same vocabulary size: one token a byte."""
    import torch
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

    special = ["<unk>", "<eos>"]
    vocabulary = {token: number for number, token in enumerate([*special, *sorted(ByteLevel.alphabet())])}
    tokenizer = Qwen2Tokenizer(vocab=vocabulary, merges=[], unk_token="<unk>", eos_token="<eos>", pad_token="<eos>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        eos_token_id=1,
        pad_token_id=1,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)


def write_data(path: Path, rows: int, seed: int) -> None:
    """Questions whose answer repeats them: something a model can get better at within a few steps."""
    import pandas

    rng = random.Random(seed)
    chats = []
    for _ in range(rows):
        words = " ".join(f"w{rng.randrange(8)}" for _ in range(rng.randint(3, 12)))
        chats.append([{"role": "user", "content": words}, {"role": "assistant", "content": words}])
    pandas.DataFrame({"messages": chats}).to_parquet(path)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    write_model(folder / "model")
    write_data(folder / "train.parquet", 64, seed=1)
    write_data(folder / "val.parquet", 16, seed=2)


if __name__ == "__main__":
    main()
