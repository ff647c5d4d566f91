#!/usr/bin/env bash
# Draws the pictures of docs/ from what was measured; measures first what they need and build/results lacks.
#
# usage: bash bench/plots.sh [<filter>]
#   <filter>  only pictures whose file names contain it
set -euo pipefail
cd "$(dirname "$0")/.."
source bench/build.sh
filter=${1:-}
mkdir -p build/results

drawn() { [[ $1 == *"$filter"* ]]; }
measured() { grep -qs "^$1 " "build/results/$2.txt"; }

if drawn kvtc_ratio && ! measured kl_sweep_predicted_42x kvtc; then bash bench/kvtc.sh _ >/dev/null; fi
if drawn quality_window && ! measured kl_sweep_window_4096 quality; then bash bench/quality.sh kl_ >/dev/null; fi
if drawn attention_time && ! [ -s build/results/attention_time.txt ]; then
  build_bench bench_attention_time
  "$bench_folder/plots/bench_attention_time" >build/results/attention_time.part
  mv build/results/attention_time.part build/results/attention_time.txt
fi
if drawn tiers_speed; then
  measured kl_sweep_tiered_mean_20 quality || bash bench/quality.sh kl_sweep_ >/dev/null
  measured hard_speedup_mean_20 speed || bash bench/speed.sh _speedup_ >/dev/null
fi
python3 bench/plots/draw.py build/results docs "$filter"
