# shellcheck shell=bash
# What the commands for real cards share; sourced by run_grpo.sh, run_ppo.sh and run_sft.sh.
#
# MODEL    a model id or folder         (default Qwen/Qwen2.5-0.5B-Instruct)
# DATA     a folder with GSM8K in verl's format: train.parquet and test.parquet (default ~/data/gsm8k); made by
#          upstream's `python examples/data_preprocess/gsm8k.py --local_save_dir ~/data/gsm8k`
# CARDS    Intel GPUs per node          (default: the discrete ones this user may open)
# NODES    nodes of the Ray cluster     (default 1)
# OUTPUT   checkpoints                  (default ./outputs)
# Anything after the script's name is passed on as Hydra overrides. scripts/env.example has the variables worth setting.
say() { printf '%s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }

PYTHON=${PYTHON:-python3}
MODEL=${MODEL:-Qwen/Qwen2.5-0.5B-Instruct}
DATA=${DATA:-$HOME/data/gsm8k}
NODES=${NODES:-1}
OUTPUT=${OUTPUT:-$PWD/outputs}

command -v "$PYTHON" >/dev/null || fail "PYTHON=$PYTHON is not on PATH"
for file in train.parquet test.parquet; do
  [ -r "$DATA/$file" ] || fail "DATA=$DATA has no readable $file; upstream's examples/data_preprocess makes it"
done
count='import xpu_shim.intel.devices as d; print(sum(gpu.discrete for gpu in d.intel_gpus()))'
CARDS=${CARDS:-$("$PYTHON" -c "$count" 2>/dev/null || echo 0)}
case "$CARDS" in
  '' | *[!0-9]* | 0) fail "CARDS=$CARDS: no discrete Intel GPU that this user may open; \`xpu-shim doctor\` says why" ;;
esac
