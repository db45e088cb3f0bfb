#!/usr/bin/env bash
# setup/configure.sh PRESET [cmake arguments]: configures the preset's build folder unless that is already done. A folder
# that was configured for another source tree (a copied checkout) or another ggml/llama is configured afresh.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1; shift
folder=build; [[ $preset == release ]] || folder=build-$preset
cache=$folder/CMakeCache.txt
system=OFF; [[ -z ${QEVICT_SYSTEM_LLAMA:-} ]] || system=ON
arguments=(--preset "$preset" "-DQEVICT_SYSTEM_LLAMA=$system" "$@")

value_of() { sed -n "s|^$1:[A-Z]*=||p" "$cache"; }
if [[ ! -e $cache ]]; then
  cmake "${arguments[@]}"
elif [[ $(value_of CMAKE_HOME_DIRECTORY) != "$PWD" || $(value_of QEVICT_SYSTEM_LLAMA) != "$system" ]]; then
  cmake --fresh "${arguments[@]}"
elif [[ ! -e $folder/build.ninja || $# -gt 0 ]]; then
  cmake "${arguments[@]}"
fi
