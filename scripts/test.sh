#!/usr/bin/env bash
# Sets up everything and runs the tests on simulated devices; no GPU is needed.
#
#   ./scripts/test.sh                 all areas but end_to_end, without the tests marked slow
#   ./scripts/test.sh --all           also what is marked slow, and whole runs of verl: about an hour
#   ./scripts/test.sh --exhaustive    also what is marked exhaustive (other upstream releases, every kind of whole run):
#                                     about two and a half hours
#   ./scripts/test.sh AREA...         some areas only: lint unit contract collectives devices models rollout profiling
#                                     doctor weights simxpu end_to_end
#   ./scripts/test.sh --setup         make the environment and stop
#
# See scripts/environment.sh for XPU_SHIM_CACHE and XPU_SHIM_TORCH_INDEX.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

# Area, seconds it takes on 2 cores, and how many more with the slow and with the exhaustive tests; only for the estimate
# that is printed.
declare -A seconds=(
  [lint]=50 [unit]=20 [contract]=100 [collectives]=100 [devices]=190 [models]=150 [rollout]=65 [profiling]=80
  [doctor]=70 [weights]=130 [simxpu]=250 [end_to_end]=600
)
declare -A more=(
  [lint]=0 [unit]=0 [contract]=60 [collectives]=0 [devices]=600 [models]=120 [rollout]=300 [profiling]=160
  [doctor]=150 [weights]=240 [simxpu]=290 [end_to_end]=0
)
declare -A most=(
  [lint]=0 [unit]=0 [contract]=0 [collectives]=0 [devices]=900 [models]=0 [rollout]=0 [profiling]=0
  [doctor]=0 [weights]=0 [simxpu]=0 [end_to_end]=4200
)
order=(lint unit contract collectives devices models rollout profiling doctor weights simxpu end_to_end)

all=0
exhaustive=0
areas=()
for argument in "$@"; do
  case "$argument" in
    --all) all=1 ;;
    --exhaustive) all=1 exhaustive=1 ;;
    --setup) make_environment; exit 0 ;;
    -h | --help) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *)
      [ -n "${seconds[$argument]:-}" ] || fail "'$argument' is neither --all, --exhaustive, --setup nor an area: ${order[*]}"
      areas+=("$argument")
      ;;
  esac
done
if [ "${#areas[@]}" -eq 0 ]; then
  areas=("${order[@]}")
  [ "$all" -eq 1 ] || unset "areas[-1]"
fi

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
    [ "$counting" -eq 0 ] || total=$((total + ${seconds[$area]} + all * ${more[$area]} + exhaustive * ${most[$area]}))
  done
  echo "$total"
}

run() {
  local marker=(-m "not slow and not exhaustive")
  # Whole runs of verl are slow without exception, and asked for by name or with --all.
  if [ "$all" -eq 1 ] || [ "$1" = end_to_end ]; then marker=(-m "not exhaustive"); fi
  if [ "$exhaustive" -eq 1 ]; then marker=(); fi
  # Most of these tests start one process after another: two modules at a time keep two cores busy.
  case "$1" in
    unit | contract | profiling | doctor) marker+=(-n 2 --dist loadscope) ;;
  esac
  case "$1" in
    lint)
      "$PYTHON" -m ruff check . && "$PYTHON" -m ruff format --check . &&
        "$PYTHON" -m mypy && "$PYTHON" scripts/generate.py --check && "$base/bin/shellcheck" -x -P SCRIPTDIR scripts/*.sh .ci/run &&
        "$base/bin/hadolint" scripts/docker/Dockerfile
      ;;
    collectives | devices | models | rollout | profiling | doctor)
      "$PYTHON" -m pytest "${marker[@]}" "tests/simulated/$1"
      ;;
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
