#!/usr/bin/env bash
# Draws the pictures of docs/ from what was measured; measures first what is not in build/results yet.
#
# usage: bash bench/plots.sh [<filter>]
#   <filter>  only pictures whose file names contain it
set -euo pipefail
cd "$(dirname "$0")/.."
source bench/build.sh
filter=${1:-}
mkdir -p build/results

if ! grep -qs '^kl_sweep_window' build/results/quality.txt; then bash bench/quality.sh kl_ >/dev/null; fi
if ! grep -qs '^kl_sweep_tiered_mean_20 ' build/results/quality.txt; then bash bench/quality.sh kl_sweep_ >/dev/null; fi
if ! grep -qs '^hard_speedup_mean_20 ' build/results/speed.txt; then bash bench/speed.sh _speedup_ >/dev/null; fi
if ! [ -s build/results/attention_time.txt ]; then
  build_bench bench_attention_time
  "$bench_folder/plots/bench_attention_time" >build/results/attention_time.part
  mv build/results/attention_time.part build/results/attention_time.txt
fi
if [[ kvtc_ratio == *"$filter"* ]] && ! grep -qs '^kl_sweep_predicted' build/results/kvtc.txt; then bash bench/kvtc.sh _ >/dev/null; fi
python3 bench/plots/draw.py build/results docs "$filter"
