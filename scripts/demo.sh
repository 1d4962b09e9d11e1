#!/usr/bin/env bash
# Sets up everything and runs a stock verl command on simulated Intel GPUs; no GPU is needed.
#
#   ./scripts/demo.sh                                  GRPO, 2 simulated cards, 2 vLLM replicas, 3 steps
#   ./scripts/demo.sh --algorithm ppo|sft|grpo --steps N --cards N --strategy fsdp|fsdp2
#   ./scripts/demo.sh --without-shim                   the same command without the shim: shows where it stops
#   XPU_SHIM=0 ./scripts/demo.sh                       the same
#   ./scripts/demo.sh --without-cure avg_abort         one fault, and the shim without what cures it
#   ./scripts/demo.sh -- OVERRIDE...                   with more Hydra overrides
#
# See scripts/environment.sh for XPU_SHIM_CACHE and XPU_SHIM_TORCH_INDEX.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
case " $* " in *" -h "* | *" --help "*) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
make_environment
exec "$PYTHON" scripts/demo/main.py "$@"
