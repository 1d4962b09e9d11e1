"""A task small enough for a CPU: one-digit sums, a two-layer Qwen2 with random weights, and a tokenizer of 20 symbols."""

from __future__ import annotations

from pathlib import Path

SYMBOLS = ["<pad>", "<|im_end|>", "<unk>", *"0123456789", *"+=?.#", "\u0120", "\u010a"]

#: Every turn is its text; the assistant's ends with <|im_end|>.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}<|im_end|>{% endif %}{% endfor %}"
)


def make_tokenizer(folder: Path) -> int:
    """Save a tokenizer with one token a character; returns the size of its vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # transformers gives a model of type qwen2 Qwen's byte-level pipeline whatever the file says, so it is that: without
    # merges each byte is a token (a blank is written U+0120 and a line feed U+010A there).
    tokenizer = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(SYMBOLS)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        eos_token="<|im_end|>",
        pad_token="<pad>",
        chat_template=CHAT_TEMPLATE,
    )
    fast.save_pretrained(folder)
    return len(fast)


def make_model(folder: Path, seed: int = 0) -> None:
    """Save a Qwen2 with random weights and its tokenizer: 0.3 million parameters, heads of 32 (vLLM refuses 16 on a CPU)."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    size = make_tokenizer(folder)
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=size,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)


def problems() -> list[tuple[str, str]]:
    """All sums of two digits that are one digit again: 55 questions with their answers."""
    return [(f"{a}+{b}=", str(a + b)) for a in range(10) for b in range(10 - a)]


def make_data(folder: Path, rows: int = 512) -> None:
    """Write train and test files in verl's two formats: prompts with a reward (RL), and conversations (SFT)."""
    import pandas

    folder.mkdir(parents=True, exist_ok=True)
    questions = problems()
    reinforcement = [
        {
            "data_source": "one-digit-sums",
            "prompt": [{"role": "user", "content": question}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": answer},
            "extra_info": {"split": "train", "index": index},
        }
        for index, (question, answer) in ((i, questions[i % len(questions)]) for i in range(rows))
    ]
    supervised = [
        {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
        for question, answer in (questions[i % len(questions)] for i in range(rows))
    ]
    pandas.DataFrame(reinforcement).to_parquet(folder / "train.parquet")
    pandas.DataFrame(reinforcement[:16]).to_parquet(folder / "test.parquet")
    pandas.DataFrame(supervised).to_parquet(folder / "sft_train.parquet")
    pandas.DataFrame(supervised[:16]).to_parquet(folder / "sft_test.parquet")


if __name__ == "__main__":
    import sys

    make_model(Path(sys.argv[1]) / "model")
    make_data(Path(sys.argv[1]) / "data")
