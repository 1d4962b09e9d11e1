#!/usr/bin/env bash
# PPO with a critic on real Intel GPUs with upstream's example settings. No override names a device: xpu-shim does that.
# Variables: see scripts/real_cards.sh. Not run on Intel GPUs by this project; shown on simulated ones (scripts/demo.sh).
set -euo pipefail
# shellcheck source=scripts/real_cards.sh
. "$(dirname "$0")/real_cards.sh"
exec "$PYTHON" -m verl.trainer.main_ppo \
  algorithm.adv_estimator=gae algorithm.use_kl_in_reward=False \
  data.train_files="$DATA/train.parquet" data.val_files="$DATA/test.parquet" \
  data.train_batch_size=128 data.max_prompt_length=512 data.max_response_length=512 \
  data.filter_overlong_prompts=True data.truncation=error \
  actor_rollout_ref.model.path="$MODEL" \
  actor_rollout_ref.model.use_remove_padding=True actor_rollout_ref.model.enable_gradient_checkpointing=True \
  actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.ppo_mini_batch_size=64 \
  actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192 \
  actor_rollout_ref.actor.use_kl_loss=False actor_rollout_ref.actor.entropy_coeff=0 \
  actor_rollout_ref.actor.fsdp_config.param_offload=False actor_rollout_ref.actor.fsdp_config.optimizer_offload=False \
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
  actor_rollout_ref.rollout.gpu_memory_utilization=0.5 actor_rollout_ref.rollout.n=1 \
  actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True \
  actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=8192 \
  actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=8192 \
  actor_rollout_ref.ref.fsdp_config.param_offload=True \
  critic.model.path="$MODEL" critic.model.use_remove_padding=True \
  critic.model.enable_gradient_checkpointing=True critic.optim.lr=1e-5 critic.use_dynamic_bsz=True \
  critic.ppo_max_token_len_per_gpu=8192 critic.fsdp.param_offload=False critic.fsdp.optimizer_offload=False \
  trainer.balance_batch=True \
  trainer.critic_warmup=0 'trainer.logger=["console"]' trainer.project_name=gsm8k trainer.experiment_name=ppo \
  trainer.n_gpus_per_node="$CARDS" trainer.nnodes="$NODES" trainer.default_local_dir="$OUTPUT/ppo" \
  trainer.save_freq=20 trainer.test_freq=5 trainer.total_epochs=1 "$@"
