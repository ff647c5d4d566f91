#!/usr/bin/env bash
# Prints how far each method's predictions are from the dense reference's, on two texts; keeps the lines in build/results/quality.txt.
#
# usage: bash bench/quality.sh [<filter>]
#   <filter>  only methods one of whose names contains it: kl_window_256, top1_full_half, sweep (windows of many sizes)
set -euo pipefail
cd "$(dirname "$0")/.."
source bench/build.sh
filter=${1:-}

build_bench bench_quality
model=$(bash examples/model.sh)
python3 bench/quality/texts.py build/texts
texts=()
for name in prose text2; do
  if [ -f "build/texts/$name.txt" ]; then texts+=(--text "$name=build/texts/$name.txt"); fi
done
mkdir -p build/results
"$bench_folder/quality/bench_quality" --model "$model" "${texts[@]}" --filter "$filter" | tee -a build/results/quality.txt
