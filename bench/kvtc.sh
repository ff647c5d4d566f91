#!/usr/bin/env bash
# Prints how far predictions move when a context's rows have gone through the transform codec: nine windows of three kinds of text, real
# bytes of real streams; and what a whole prompt costs as a file. Calibrates first where build/calibration lacks something (ten minutes on two
# cores; the paper's mode as much again); keeps the lines in build/results/kvtc.txt. All of it takes half an hour.
#
# usage: bash bench/kvtc.sh [<filter>]
#   <filter>  only the names that contain it: kl_weighted_35x, predicted, deflate_factor, end_to_end, restore_vs_prefill; sweep_: further
#             points of the curves
set -euo pipefail
cd "$(dirname "$0")/.."
source bench/build.sh
filter=${1:-}

build_bench bench_kvtc bench_storing
model=$(bash examples/model.sh)
python3 bench/quality/texts.py build/texts
texts=() calibrated_on=()
for name in prose text2 documentation; do
  if [ -f "build/texts/$name.txt" ]; then texts+=(--text "$name=build/texts/$name.txt"); fi
done
calibration_texts() {
  python3 examples/calibrate/texts.py build/calibration/texts --without-repository  # numbers stay where they are when docs change
  for name in prose code documentation; do
    if [ -f "build/calibration/texts/$name.txt" ]; then calibrated_on+=(--text "cal_$name=build/calibration/texts/$name.txt"); fi
  done
}
mkdir -p build/results
kvtc=("$bench_folder/quality/bench_kvtc" --calibration build/calibration)
storing=("$bench_folder/quality/bench_storing" --calibration build/calibration)
if [ -n "$("${kvtc[@]}" --list --filter "$filter")" ]; then
  calibration_texts
  "${kvtc[@]}" --model "$model" "${texts[@]}" "${calibrated_on[@]}" --filter "$filter" | tee -a build/results/kvtc.txt
  if [ -z "$("${storing[@]}" --list --filter "$filter")" ]; then exit 0; fi
fi
if [ ! -f build/calibration/predicted.kvxcal ]; then
  calibration_texts
  "${kvtc[@]}" --model "$model" "${texts[@]}" "${calibrated_on[@]}" --filter kl_predicted_35x | tee -a build/results/kvtc.txt
fi
"${storing[@]}" --model "$model" "${texts[@]}" --filter "$filter" | tee -a build/results/kvtc.txt
