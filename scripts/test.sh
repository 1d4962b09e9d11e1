#!/usr/bin/env bash
# Sets up everything and runs the tests on simulated devices; no GPU is needed.
#
#   ./scripts/test.sh                 the default tiers: lint unit contract collectives simxpu
#   ./scripts/test.sh --all           everything, also what is marked slow: over an hour
#   ./scripts/test.sh AREA...         some areas only: lint unit contract collectives simulated weights simxpu end_to_end
#   ./scripts/test.sh --setup         make the environment and stop
#
# See scripts/environment.sh for XPU_SHIM_CACHE and XPU_SHIM_TORCH_INDEX.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

all=0
areas=()
for argument in "$@"; do
  case "$argument" in
    --all) all=1 ;;
    --setup) make_environment; exit 0 ;;
    lint | unit | contract | collectives | simulated | weights | simxpu | end_to_end) areas+=("$argument") ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) fail "'$argument' is neither --all, --setup nor an area: lint unit contract collectives simulated weights simxpu end_to_end" ;;
  esac
done
if [ "${#areas[@]}" -eq 0 ]; then
  areas=(lint unit contract collectives simxpu)
  [ "$all" -eq 0 ] || areas=(lint unit contract weights simulated simxpu end_to_end)
fi
# Seconds each area takes on 2 cores, as measured; only for the estimate that is printed.
declare -A seconds=([lint]=20 [unit]=60 [contract]=240 [collectives]=200 [weights]=180 [simulated]=480 [simxpu]=240 [end_to_end]=240)
declare -A more=([lint]=0 [unit]=0 [contract]=60 [collectives]=0 [weights]=240 [simulated]=400 [simxpu]=300 [end_to_end]=900)

make_environment
# The tests choose devices and faults themselves; nothing of the caller's may leak in.
for name in $(compgen -e | grep -E '^(XPU_SHIM|SIMXPU|ZE_|ONEAPI_|CCL_|VERL_)' | grep -vE '^XPU_SHIM_(CACHE|TORCH_INDEX)$' || true); do
  unset "$name"
done
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} HF_HUB_OFFLINE=1 RAY_USAGE_STATS_ENABLED=0 VLLM_NO_USAGE_STATS=1

left() {
  local total=0 area counting=0
  for area in "${areas[@]}"; do
    [ "$area" != "$1" ] || counting=1
    [ "$counting" -eq 0 ] || total=$((total + ${seconds[$area]} + all * ${more[$area]}))
  done
  echo "$total"
}

run() {
  local marker=(-m "not slow")
  [ "$all" -eq 0 ] || marker=()
  case "$1" in
    lint)
      "$PYTHON" -m ruff check . && "$PYTHON" -m ruff format --check . &&
        "$PYTHON" -m mypy && "$PYTHON" scripts/generate.py --check && "$base/bin/shellcheck" -x -P SCRIPTDIR scripts/*.sh .ci/run &&
        "$base/bin/hadolint" scripts/docker/Dockerfile
      ;;
    collectives) "$PYTHON" -m pytest "${marker[@]}" tests/simulated/collectives ;;
    simxpu) "$PYTHON" -m pytest "${marker[@]}" -c pyproject.toml --rootdir . tests/simxpu/tests ;;
    *) "$PYTHON" -m pytest "${marker[@]}" "tests/$1" ;;
  esac
}

failed=()
number=0
for area in "${areas[@]}"; do
  number=$((number + 1))
  step "$number" "${#areas[@]}" "$(left "$area")" "$area"
  before=$SECONDS
  run "$area" || failed+=("$area")
  say "      $area took $((SECONDS - before)) s"
done
if [ "${#failed[@]}" -gt 0 ]; then
  say "failed after $((SECONDS - started)) s: ${failed[*]}  (again with ./scripts/test.sh ${failed[*]})"
  exit 1
fi
say "all of ${areas[*]} passed in $((SECONDS - started)) s; devices were simulated"
