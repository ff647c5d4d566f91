#!/usr/bin/env bash
# Installs what kvx's tests, examples and benches need on Debian 12; does nothing, and needs no network, where it is all there.
#
# usage: cmake/install-dependencies.sh [<folder>]
#   <folder>   where downloaded headers go (default: build/packages); only machines without a CUDA toolkit use it
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-build/packages}

say() { printf 'kvx: %s\n' "$*"; }

# One package a word, in the order of use: compilers and build; libraries; texts; checkers.
packages=(
  g++ clang libomp-dev libclang-rt-14-dev cmake ninja-build git python3 python3-pip unzip
  doctest-dev libeigen3-dev libdeflate-dev libutf8proc-dev
  bible-kjv
  clang-format-16 clang-tidy
)

missing=()
if command -v dpkg-query >/dev/null; then
  for package in "${packages[@]}"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
fi

if ! command -v apt-get >/dev/null; then
  say "this is no Debian: install by hand what your system lacks of: ${packages[*]}"
elif [ ${#missing[@]} -gt 0 ]; then
  say "installing ${missing[*]}"
  root=()
  [ "$(id -u)" = 0 ] || root=(sudo)
  log=$(mktemp)
  if ! { "${root[@]}" apt-get update -q && DEBIAN_FRONTEND=noninteractive "${root[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    say "cannot install ${missing[*]}: is there a network, and are you root? What can be built without them goes on." >&2
  fi
  rm -f "$log"
fi

for tool in c++ cmake ninja python3; do
  command -v "$tool" >/dev/null || { say "$tool is missing, and nothing can be built without it" >&2; exit 1; }
done

# The SIMT tests compile kernels for the host and need CUDA's headers alone. Versions are pinned: the wheels are those of CUDA 13.0.
if ! { command -v nvcc || [ -x /usr/local/cuda/bin/nvcc ]; } >/dev/null && [ ! -f "$folder/cuda/nvidia/cu13/include/nv/target" ]; then
  say "no CUDA toolkit here: fetching its headers for the SIMT tests"
  python3 -m pip install -q --disable-pip-version-check --root-user-action ignore --no-deps --target "$folder/cuda" \
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85 >/dev/null 2>&1 || say "they cannot be had: the SIMT tests are left out"
fi
