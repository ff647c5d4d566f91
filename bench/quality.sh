#!/usr/bin/env bash
# Prints how far each cache's attention is from exact attention, over a recorded trace, and each method's predictions from the dense
# reference's, on two texts; keeps the lines in build/results/quality.txt.
#
# usage: bash bench/quality.sh [<filter> [<trace>]]
#   <filter>  only methods one of whose names contains it: kl_window_256, top1_full_half, sweep (windows of many sizes); trace_ and what
#             follows it: attention over the trace alone
#   <trace>   default: examples/data/layer13.kvxtrace; decode_loop --dump-trace writes others
set -euo pipefail
cd "$(dirname "$0")/.."
source bench/build.sh
filter=${1:-}

mkdir -p build/results

if [[ -z $filter || $filter == trace_* ]]; then
  build_bench bench_trace
  "$bench_folder/attend/bench_trace" "${2:-examples/data/layer13.kvxtrace}" |
    awk -v filter="$filter" '/^#/ || index($1, filter)' | tee -a build/results/quality.txt
  [ -z "$filter" ] || exit 0
fi

build_bench bench_quality
model=$(bash examples/model.sh)
python3 bench/quality/texts.py build/texts
texts=()
for name in prose text2; do
  if [ -f "build/texts/$name.txt" ]; then texts+=(--text "$name=build/texts/$name.txt"); fi
done
"$bench_folder/quality/bench_quality" --model "$model" "${texts[@]}" --filter "$filter" | tee -a build/results/quality.txt
