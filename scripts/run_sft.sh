#!/usr/bin/env bash
# Supervised fine-tuning on real Intel GPUs with upstream's example settings. No override names a device.
# Variables: see scripts/real_cards.sh; the files of DATA need a column `messages` (upstream's gsm8k_multiturn_sft.py).
# Not run on Intel GPUs by this project; shown on simulated ones (scripts/demo.sh --algorithm sft).
set -euo pipefail
# shellcheck source=scripts/real_cards.sh
. "$(dirname "$0")/real_cards.sh"
# `python -m` and not the `torchrun` on PATH, which may belong to another environment.
exec "$PYTHON" -m torch.distributed.run --standalone --nnodes=1 --nproc_per_node="$CARDS" -m verl.trainer.sft_trainer \
  data.train_files="$DATA/train.parquet" data.val_files="$DATA/test.parquet" data.messages_key=messages \
  data.micro_batch_size_per_gpu=4 optim.lr=1e-4 engine=fsdp engine.ulysses_sequence_parallel_size=1 \
  model.path="$MODEL" model.use_remove_padding=true \
  trainer.default_local_dir="$OUTPUT/sft" trainer.project_name=gsm8k trainer.experiment_name=sft \
  'trainer.logger=["console"]' trainer.total_epochs=1 "$@"
