#!/usr/bin/env bash
# Prints the speed metrics as lines "name value", and lines that begin with # for the conditions; keeps them in build/results/speed.txt.
#
# usage: bash bench/speed.sh [<filter>]
#   <filter>  only the names that contain it; kvtc: those of stored caches (rANS, chunks, a file's restore; calibrates first if need be)
# KVX_SIMD=baseline|avx2|avx512 measures a lower instruction set.
set -euo pipefail
cd "$(dirname "$0")/.."
source bench/build.sh
filter=${1:-}
if [ "$filter" = kvtc ]; then
  for name in rans_decode_vs decode_vs_gemm encode_vs_decode restore_vs_prefill; do bash bench/speed.sh $name; done
  exit 0
fi
wanted() { [[ $1 == *"$filter"* ]]; }

# The median of the numbers on standard input.
median() { sort -g | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }'; }

# baseline_vs_native <metric> <program> <ratio>: speed of the program built for every x86-64 over that of the one built for this machine
# alone, <program>_native, run in turns. Each speed is itself a ratio to the machine's, taken in one process: the clock of the moment
# cancels out.
baseline_vs_native() {
  local folder turn build
  folder=$(mktemp -d)
  for turn in 1 2 3; do
    for build in plain native; do
      local program=$bench_folder/$2
      [ $build = plain ] || program+=_native
      "$program" "$3" | awk -v name="$3" '$1 == name { print $2 }' >>"$folder/$build"
    done
  done
  awk -v name="$1" -v plain="$(median <"$folder/plain")" -v native="$(median <"$folder/native")" \
    'BEGIN { printf "# %s: plain %.3f, native %.3f of the machine\n%s %.3f\n", name, plain, native, name, plain / native }'
  rm -r "$folder"
}

# wanted_lines: of the lines of standard input the comments and those whose name contains the filter.
wanted_lines() { awk -v filter="$filter" '/^#/ || index($1, filter)'; }

mkdir -p build/results
{
  for name in dense_decode_vs_read dense_prompt_vs_gemm; do
    if wanted $name; then
      build_bench bench_dense
      "$bench_folder/attend/bench_dense" $name
    fi
  done
  if wanted baseline_build_vs_native_dense; then
    build_bench bench_dense bench_dense_native
    baseline_vs_native baseline_build_vs_native_dense attend/bench_dense dense_decode_vs_read
    baseline_vs_native baseline_build_vs_native_dense_prompt attend/bench_dense dense_prompt_vs_gemm
  fi
  for name in paris_step_speedup_{10,5,2} paris_step_per_key_growth paris_step_vs_read_5 paris_step_mass_10; do
    if wanted $name; then
      build_bench bench_paris_step
      "$bench_folder/cache/bench_paris_step" "$filter"
      break
    fi
  done
  for name in ice_step_speedup ice_search_share ice_tree_vs_brute ice_keys_scored; do
    if wanted $name; then
      build_bench bench_ice_step
      "$bench_folder/cache/bench_ice_step" "$filter"
      break
    fi
  done
  if wanted bulk_load_vs_memcpy || wanted bulk_load_calls_vs_memcpy; then
    build_bench bench_bulk_load
    "$bench_folder/layout/bench_bulk_load" "$filter"
  fi
  if wanted far_step_vs_resident || wanted far_step_hits || wanted far_step_memory; then
    build_bench bench_far_step
    "$bench_folder/cache/bench_far_step" "$filter"
  fi
  if wanted prefill_overlap || wanted prefill_overlap_paris; then
    build_bench bench_prefill_overlap
    "$bench_folder/cache/bench_prefill_overlap" "$filter"
  fi
  for name in {tiered,hard}_speedup_{2,4,5,7,10,20,mean_{2,5,10,20}} tiered_speedup_{fine,fast}{,_v2} coded_vs_rerank tail_share tiered_bytes_per_token_d128; do
    if wanted $name; then
      build_bench bench_tiered_step
      "$bench_folder/cache/bench_tiered_step" "$filter"
      break
    fi
  done
  if wanted baseline_build_vs_native_step; then
    build_bench bench_paris_step bench_paris_step_native
    baseline_vs_native baseline_build_vs_native_step cache/bench_paris_step paris_step_vs_read_5
  fi
  if wanted encode_vs_memcpy; then
    build_bench bench_key_code
    "$bench_folder/sketch/bench_key_code" encode_vs_memcpy
  fi
  if wanted paris_scan_vs_read || wanted headaware_vs_mean_scan || wanted paris_votes_vs_signsum_counts_kept; then
    build_bench bench_sign_buckets
    "$bench_folder/index/bench_sign_buckets" "$filter"
  fi
  for name in ice_{build,build_tree}_vs_gemm ice_{search,beam}_{keys,vs_keys_read}; do
    if wanted $name; then
      build_bench bench_dci_tree
      "$bench_folder/index/bench_dci_tree" "$filter"
      break
    fi
  done
  for percent in 10 5 2; do
    if wanted exact_share_$percent || wanted rerank_share_$percent || wanted group_rule_share_$percent || wanted top_k_share_$percent ||
       wanted attend_rows_share_$percent || wanted rerank_four_heads_vs_one_$percent; then
      build_bench bench_rerank
      "$bench_folder/rerank/bench_rerank" | wanted_lines
      break
    fi
  done
  if wanted rans_decode_vs_libdeflate_low || wanted rans_decode_vs_libdeflate_high || wanted rans_decode_vs_scalar; then
    build_bench bench_rans
    "$bench_folder/codec/bench_rans" "$filter"
  fi
  if wanted decode_vs_gemm || wanted encode_vs_decode || wanted checksums_vs_decode; then
    build_bench bench_chunk
    "$bench_folder/codec/bench_chunk" "$filter"
  fi
  for name in restore_vs_prefill check_cost save_4096_{seconds,peak_mb}; do
    # A calibration takes ten minutes: without a filter only where there is one.
    if wanted $name && { [ -n "$filter" ] || [ -f build/calibration/predicted.kvxcal ]; }; then
      bash bench/kvtc.sh "${filter:-restore_vs_prefill}"
      break
    fi
  done
  if wanted step_overhead || wanted fork_rows_copied || wanted fork_vs_step; then
    build_bench bench_steps
    "$bench_folder/cache/bench_steps" "$filter"
  fi
  if wanted loop_prompt_vs_gemm; then
    model=$(bash examples/model.sh)
    build_bench decode_loop
    build/bench/examples/decode_loop/decode_loop --model "$model" --bench-prompt
  fi
  if wanted include_seconds; then bash bench/include_seconds.sh; fi
} | tee -a build/results/speed.txt
