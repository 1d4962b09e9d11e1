"""The stock verl commands: upstream's example overrides, with only sizes changed.

None of them names a device, a backend, an attention implementation, an executor or anything else a CUDA user would not
write; `tests/end_to_end` checks that.
"""

from __future__ import annotations

from pathlib import Path


def common(folder: Path, cards: int, steps: int) -> list[str]:
    """Overrides GRPO and PPO share, after examples/grpo_trainer/run_qwen3_8b_fsdp.sh."""
    return [
        "algorithm.use_kl_in_reward=False",
        f"data.train_files={folder}/data/train.parquet",
        f"data.val_files={folder}/data/test.parquet",
        "data.train_batch_size=32",
        "data.max_prompt_length=32",
        "data.max_response_length=8",
        "data.filter_overlong_prompts=True",
        "data.truncation=error",
        f"actor_rollout_ref.model.path={folder}/model",
        "actor_rollout_ref.model.use_remove_padding=True",
        "actor_rollout_ref.model.enable_gradient_checkpointing=True",
        "actor_rollout_ref.actor.optim.lr=2e-3",
        "actor_rollout_ref.actor.ppo_mini_batch_size=32",
        "actor_rollout_ref.actor.use_dynamic_bsz=True",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=2048",
        "actor_rollout_ref.actor.entropy_coeff=0",
        "actor_rollout_ref.actor.fsdp_config.param_offload=False",
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload=False",
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.6",
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True",
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=2048",
        "actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True",
        "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=2048",
        "actor_rollout_ref.ref.fsdp_config.param_offload=True",
        "reward.custom_reward_function.path=" + str(Path(__file__).with_name("reward.py")),
        "trainer.critic_warmup=0",
        'trainer.logger=["console"]',
        "trainer.project_name=one-digit-sums",
        "trainer.experiment_name=demo",
        f"trainer.n_gpus_per_node={cards}",
        "trainer.nnodes=1",
        "trainer.save_freq=-1",
        "trainer.test_freq=-1",
        "trainer.val_before_train=False",
        f"trainer.default_local_dir={folder}/checkpoints",
        f"trainer.total_training_steps={steps}",
        # Sizes of a machine with two cores.
        "actor_rollout_ref.rollout.max_model_len=256",
        "actor_rollout_ref.rollout.max_num_seqs=64",
        "actor_rollout_ref.rollout.agent.num_workers=1",
        "reward.num_workers=1",
        "data.dataloader_num_workers=0",
        "ray_kwargs.ray_init.num_cpus=16",
    ]


def grpo(folder: Path, cards: int, steps: int) -> list[str]:
    """The stock GRPO command."""
    return [
        "-m",
        "verl.trainer.main_ppo",
        "algorithm.adv_estimator=grpo",
        *common(folder, cards, steps),
        "actor_rollout_ref.actor.use_kl_loss=True",
        "actor_rollout_ref.actor.kl_loss_coef=0.001",
        "actor_rollout_ref.actor.kl_loss_type=low_var_kl",
        "actor_rollout_ref.rollout.n=5",
    ]


def ppo(folder: Path, cards: int, steps: int) -> list[str]:
    """The stock PPO command, with a critic, after examples/ppo_trainer/run_qwen3_8b_fsdp.sh."""
    return [
        "-m",
        "verl.trainer.main_ppo",
        "algorithm.adv_estimator=gae",
        *common(folder, cards, steps),
        "actor_rollout_ref.actor.use_kl_loss=False",
        "actor_rollout_ref.rollout.n=1",
        f"critic.model.path={folder}/model",
        "critic.model.use_remove_padding=True",
        "critic.model.enable_gradient_checkpointing=True",
        "critic.optim.lr=1e-3",
        "critic.use_dynamic_bsz=True",
        "critic.ppo_max_token_len_per_gpu=2048",
        "critic.fsdp.param_offload=False",
        "critic.fsdp.optimizer_offload=False",
        "trainer.balance_batch=True",
    ]


def sft(folder: Path, cards: int, steps: int) -> list[str]:
    """The stock SFT command, after examples/sft/gsm8k/run_qwen2_5_0_5b_fsdp.sh; started by torchrun."""
    return [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nnodes=1",
        f"--nproc_per_node={cards}",
        "-m",
        "verl.trainer.sft_trainer",
        f"data.train_files={folder}/data/sft_train.parquet",
        f"data.val_files={folder}/data/sft_test.parquet",
        "data.messages_key=messages",
        "data.train_batch_size=32",
        "data.max_length=64",
        "data.micro_batch_size_per_gpu=4",
        "optim.lr=1e-3",
        "engine=fsdp",
        "engine.ulysses_sequence_parallel_size=1",
        f"model.path={folder}/model",
        "model.use_remove_padding=true",
        f"trainer.default_local_dir={folder}/checkpoints-sft",
        "trainer.project_name=one-digit-sums",
        "trainer.experiment_name=sft",
        'trainer.logger=["console"]',
        "trainer.total_epochs=1",
        f"trainer.total_training_steps={steps}",
    ]


ALGORITHMS = {"grpo": grpo, "ppo": ppo, "sft": sft}

#: What an owner of real cards, or of CUDA cards, would not write into a command.
FORBIDDEN = ("xpu", "xccl", "sdpa", "eager", "uni", "sleep", "num_gpus", "device", "free_cache", "attn_implementation")
