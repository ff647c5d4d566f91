#!/usr/bin/env bash
# Prints how far each cache's attention is from exact attention, over a recorded trace; how many of the keys that matter a search finds; and
# each method's predictions from the dense reference's, on two texts. Keeps the lines in build/results/quality.txt.
#
# usage: bash bench/quality.sh [<filter> [<trace>]]
#   <filter>  only what has a name that contains it: kl_window_256, top1_full_half, sweep (windows of many sizes); recall128_default_10,
#             recall128_centre (other centres), mass128 (attention mass captured); trace_ and what follows it: attention over the trace;
#             kvtc, or a name of bench/kvtc.sh: stored caches, which take half an hour and run where they are asked for
#   <trace>   default: examples/data/layer13.kvxtrace; decode_loop --dump-trace writes others
set -euo pipefail
cd "$(dirname "$0")/.."
source bench/build.sh
filter=${1:-}

# wanted_lines: of the lines of standard input the comments and those whose name contains the filter.
wanted_lines() { awk -v filter="$filter" '/^#/ || index($1, filter)'; }

mkdir -p build/results

if [[ -z $filter || $filter == trace_* ]]; then
  build_bench bench_trace
  "$bench_folder/attend/bench_trace" "${2:-examples/data/layer13.kvxtrace}" | wanted_lines | tee -a build/results/quality.txt
  [ -z "$filter" ] || exit 0
fi

# Stored caches have a script of their own.
case $filter in
  kvtc) exec bash bench/kvtc.sh ;;
  *ice_*) ;;
  *faithful* | *weighted* | *predicted* | *int[24]_g* | *deflate* | *entropy* | *rans* | *or_major* | *end_to_end*) exec bash bench/kvtc.sh "$filter" ;;
esac

build_bench bench_unbalanced bench_heads bench_quality
if [[ recall_unbalanced_world == *"$filter"* || $filter == recall_unbalanced_world* ]]; then
  "$bench_folder/quality/bench_unbalanced" | wanted_lines | tee -a build/results/quality.txt
  if [[ $filter == recall_unbalanced* ]]; then exit 0; fi
fi

# Of the programs that run the model those that print what the filter asks for; where none does, the last one says so.
programs=()
for program in bench_heads bench_quality; do
  if [ -n "$("$bench_folder/quality/$program" --list --filter "$filter")" ]; then programs+=("$program"); fi
done
model=$(bash examples/model.sh)
python3 bench/quality/texts.py build/texts
texts=()
for name in prose text2; do
  if [ -f "build/texts/$name.txt" ]; then texts+=(--text "$name=build/texts/$name.txt"); fi
done
for program in "${programs[@]:-bench_quality}"; do
  "$bench_folder/quality/$program" --model "$model" "${texts[@]}" --filter "$filter" | tee -a build/results/quality.txt
done
