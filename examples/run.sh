#!/usr/bin/env bash
# Installs what is missing, builds the decode loop or another example, and runs it on a real model (SmolLM2-135M-Instruct).
#
# usage: bash examples/run.sh [option...]
#        bash examples/run.sh --example <folder> [<document>]
#   (nothing)      reads a long document, decodes through each cache type, prints a table, asks for a pass key
#   --audit        what each layer loses by retrieving, and which layers should attend densely
#   --prompt TEXT  generates text
#   --backend device   the model on the host, the cache on the GPU; where there is none, says so and takes the host's
#   --help         lists all options
#   --example      first_cache, own_policy, save_restore, prefix_sharing or speculative_decoding; the last two read a document (default: README.md and
#                  the pages in docs/)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/examples
log=$build/run.log
mkdir -p "$build"
: >"$log"

step() {  # step <what> <command...>: silent when it succeeds, the whole log when it fails
  echo "kvx: $1" >&2
  shift
  "$@" >>"$log" 2>&1 || { cat "$log" >&2; echo "kvx: failed: $*" >&2; exit 1; }
}

has() {  # has <option>: whether the caller gave it
  local argument
  for argument in "${arguments[@]}"; do [ "$argument" != "$1" ] || return 0; done
  return 1
}
arguments=("$@")

# What a cache on the GPU needs: one that answers, and CUDA's compiler.
device=()
for ((i = 0; i + 1 < ${#arguments[@]}; ++i)); do
  [ "${arguments[i]}" = --backend ] && [ "${arguments[i + 1]}" = device ] || continue
  if capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null) && { command -v nvcc || [ -x /usr/local/cuda/bin/nvcc ]; } >/dev/null; then
    device=(-D KVX_DECODE_LOOP_DEVICE=ON -D "KVX_CUDA_ARCHITECTURE=$(head -n 1 <<<"$capability" | tr -d '. ')")
  else
    echo "kvx: no GPU with CUDA's compiler here: the host's caches" >&2
    set -- "${arguments[@]:0:i}" "${arguments[@]:i+2}"
    arguments=("$@")
  fi
  break
done

program=decode_loop
if [ "${1:-}" = --example ]; then
  program=${2:-}
  case $program in
    first_cache | own_policy | save_restore) most=2 ;;
    prefix_sharing | speculative_decoding) most=3 ;;
    *) echo "kvx: --example '$program': first_cache, own_policy, save_restore, prefix_sharing or speculative_decoding" >&2; exit 2 ;;
  esac
  if [ $# -gt $most ]; then echo "kvx: --example $program takes no '${!#}'" >&2; exit 2; fi
  if [ -n "${3:-}" ] && [ ! -r "$3" ]; then echo "kvx: the document '$3' cannot be read" >&2; exit 2; fi
fi

bash "$root/cmake/install-dependencies.sh" build/packages >&2
launcher=()
if command -v ccache >/dev/null; then launcher=(-D CMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
step "configuring" cmake -S "$root" -B "$build" -G Ninja -D CMAKE_BUILD_TYPE=Release -D KVX_BUILD_TESTS=OFF -D KVX_BUILD_BENCH=OFF "${device[@]}" "${launcher[@]}"
step "building" cmake --build "$build" --target "$program"
loop=$build/examples/$program/$program

# Threads that wait give their core away soon.
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-10000}

case $program in
  first_cache | own_policy | save_restore) exec "$loop" ;;
  prefix_sharing | speculative_decoding)
    model=$(bash "$root/examples/model.sh" "$root/build/model")
    document=${3:-$build/pages.txt}
    cat "$root/README.md" "$root"/docs/*.md >"$build/pages.txt"
    exec "$loop" "$model" "$document"
    ;;
esac

if has --help || has -h || has --replay || has --model; then exec "$loop" "$@"; fi

if ! model=$(bash "$root/examples/model.sh" "$root/build/model"); then
  if has --prompt || has --text || has --audit || has --dump-trace || has --bench-prompt; then
    echo "kvx: no model, and what was asked for needs one" >&2
    exit 1
  fi
  echo "kvx: no model and no network to fetch it: attention alone, over a recorded trace of it" >&2
  exec "$loop" --replay "$root/examples/data/layer13.kvxtrace" "$@"
fi

text=()
if ! has --text && ! has --prompt && ! has --bench-prompt; then
  text=(--text "$root/examples/data/document.txt")
fi

# What the lines of stored caches need, made once: a quick calibration, from other texts than the document.
codecs=()
if [ "${#device[@]}" = 0 ] && ! has --codecs && ! has --prompt && ! has --audit && ! has --dump-trace && ! has --bench-prompt; then
  folder=$root/build/calibration
  codecs=(--codecs "$folder")
  calibrate() {  # calibrate <name> <option...>: <name>.kvxcal, or files that its options name
    local part=$folder/$1.part
    step "building the calibration" cmake --build "$build" --target calibrate
    step "its texts" python3 "$root/examples/calibrate/texts.py" "$folder/quick_texts" --without-repository
    "$build/examples/calibrate/calibrate" --model "$model" --tokens 6000 --out "$part" "${@:2}" "$folder"/quick_texts/*.txt >>"$log" ||
      { cat "$log" >&2; exit 1; }
  }
  mkdir -p "$folder/quick_texts"
  if [ ! -f "$folder/quick.kvxcal" ]; then
    echo "kvx: a quick calibration of the codec, once: up to three minutes" >&2
    calibrate quick --attended 2048
    mv "$folder/quick.part" "$folder/quick.kvxcal"
  fi
  if has --all && [ ! -f "$folder/quick_faithful32.kvxcal" ]; then
    echo "kvx: the same for the codec as published, whose basis is of all layers: up to ten minutes" >&2
    calibrate quick_faithful --faithful 8,16,32
    for ratio in 8 16 32; do mv "$folder/quick_faithful$ratio.part" "$folder/quick_faithful$ratio.kvxcal"; done
  fi
fi
exec "$loop" --model "$model" "${text[@]}" "${codecs[@]}" "$@"
