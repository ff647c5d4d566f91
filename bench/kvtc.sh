#!/usr/bin/env bash
# Prints how far predictions move when a context's rows have gone through the transform codec: nine windows of three kinds of text, real
# bytes of real streams. Calibrates first where build/calibration holds nothing; keeps the lines in build/results/kvtc.txt.
#
# usage: bash bench/kvtc.sh [<filter>]
#   <filter>  only the names that contain it: kl_weighted_35x, predicted, deflate_factor
set -euo pipefail
cd "$(dirname "$0")/.."
source bench/build.sh

build_bench bench_kvtc
model=$(bash examples/model.sh)
python3 bench/quality/texts.py build/texts
python3 examples/calibrate/texts.py build/calibration/texts
texts=()
for name in prose text2 documentation; do
  if [ -f "build/texts/$name.txt" ]; then texts+=(--text "$name=build/texts/$name.txt"); fi
done
for name in prose code documentation; do
  if [ -f "build/calibration/texts/$name.txt" ]; then texts+=(--text "cal_$name=build/calibration/texts/$name.txt"); fi
done
mkdir -p build/results
"$bench_folder/quality/bench_kvtc" --model "$model" "${texts[@]}" --filter "${1:-}" --calibration build/calibration | tee -a build/results/kvtc.txt
