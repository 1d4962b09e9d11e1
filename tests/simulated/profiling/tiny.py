"""A tiny model, verl's stock configuration for it, and a batch: what a training step of verl needs."""

from __future__ import annotations

from pathlib import Path

VOCABULARY = 128


def write_model(folder: Path) -> None:
    """Write a randomly initialised two-layer Qwen2 and its tokenizer into `folder`."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    words = {f"t{number}": number for number in range(VOCABULARY - 2)} | {"<unk>": 126, "<eos>": 127}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>", pad_token="<eos>"
    ).save_pretrained(folder)


def configuration(*overrides: str):
    """verl's stock `ppo_trainer` configuration with command-line overrides, resolved as `main_ppo` does for workers."""
    import verl.trainer
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(str(Path(verl.trainer.__path__[0]) / "config"), version_base=None):
        config = compose("ppo_trainer", overrides=list(overrides))
    OmegaConf.resolve(config)
    return config


def training(model: Path) -> list[str]:
    """Overrides for one tiny FSDP2 actor with its reference."""
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    return [
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.model.use_remove_padding=False",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "actor_rollout_ref.model.enable_gradient_checkpointing=False",
        f"{actor}.strategy=fsdp2",
        f"{actor}.ppo_mini_batch_size=4",
        f"{actor}.ppo_micro_batch_size_per_gpu=2",
        f"{actor}.use_torch_compile=False",
        f"{actor}.fsdp_config.use_torch_compile=False",
        f"{actor}.fsdp_config.model_dtype=fp32",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=2",
        "actor_rollout_ref.ref.use_torch_compile=False",
        f"{rollout}.name=vllm",
        f"{rollout}.log_prob_micro_batch_size_per_gpu=2",
    ]


def batch(rows: int = 4, prompt: int = 4, response: int = 6):
    """A batch as the driver sends it to the workers: prompts, responses, advantages, in verl's unpadded layout.

    Shapes (rows, prompt + response) for token ids, (rows, response) for masks and floats.
    """
    import torch
    from tensordict import NonTensorData
    from verl import DataProto
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.padding import left_right_2_no_padding

    length = prompt + response
    ids = torch.randint(0, VOCABULARY - 2, (rows, length))
    data = DataProto.from_single_dict(
        {
            "prompts": ids[:, :prompt],
            "responses": ids[:, prompt:],
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "position_ids": torch.arange(length).repeat(rows, 1),
            "response_mask": torch.ones(rows, response, dtype=torch.long),
            "old_log_probs": torch.randn(rows, response),
            "advantages": torch.randn(rows, response),
            "ref_log_prob": torch.randn(rows, response),
        },
        meta_info={"temperature": 1.0},
    )
    result = left_right_2_no_padding(data.to_tensordict())
    tu.assign_non_tensor(result, global_token_num=NonTensorData([length] * rows), calculate_entropy=True)
    return result
