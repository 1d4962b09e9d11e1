"""verl's TrainingWorker, from the wheel as it is, trains on four simulated ranks."""

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A tiny Qwen2 with a tokenizer of 128 words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    path = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
    )
    Qwen2ForCausalLM(config).save_pretrained(path)
    words = {f"t{i}": i for i in range(126)} | {"<unk>": 126, "<eos>": 127}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>", pad_token="<eos>"
    ).save_pretrained(path)
    return str(path)


@pytest.mark.parametrize(("strategy", "fsdp_size"), [("fsdp2", "-1"), ("fsdp2", "2"), ("fsdp", "-1")])
def test_training_worker(strategy, fsdp_size, model, tmp_path, torchrun):
    arguments = (model, strategy, fsdp_size, str(tmp_path))
    outcome = torchrun("training_worker.py", 4, *arguments, timeout=500, SIMXPU_FAULTS="avg_abort").check()
    losses = [float(line.split()[2]) for line in outcome.out.splitlines() if line.startswith("loss")]
    assert len(losses) == 3
    assert losses[2] < losses[0]
    assert "exported 27" in outcome.out


def test_stock_verl_fails_with_oneccls_words(model, tmp_path, torchrun):
    arguments = (model, "fsdp2", "-1", str(tmp_path), "stock")
    outcome = torchrun("training_worker.py", 4, *arguments, timeout=500, SIMXPU_FAULTS="avg_abort")
    assert outcome.code != 0
    assert "average operation is not supported for the scheduler path" in outcome.err
