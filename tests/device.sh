#!/usr/bin/env bash
# Builds the tests and benches of the kernels with nvcc and runs them on the GPU of this machine.
#
# usage: bash tests/device.sh OUT [--jobs N]
#   OUT       a folder: numbers.txt (lines "name value"), and log.txt, what compilers and programs said
#   --jobs N  so many compilers at once (default: one a core)
#
# Needs nvcc and g++; nothing is downloaded. doctest comes from the system, else from build/packages, else tests/device/stand_in does what the
# tests use of it. Where there is no nvcc or no GPU, says so and ends well: these programs were not run.
# Environment: NVCC, KVX_CUDA_ARCHITECTURE (default: that of the GPU), KVX_DEVICE_SECONDS (default 460: when these have passed, what is left out is
# listed and counts as a failure).
set -uo pipefail
cd "$(dirname "$0")/.."

out=${1:-}
if [ -z "$out" ] || [ "${out#-}" != "$out" ]; then
  echo "usage: bash tests/device.sh OUT [--jobs N]" >&2
  exit 2
fi
shift
jobs=$(nproc)
[ "${1:-}" != --jobs ] || jobs=${2:?--jobs needs a number}
mkdir -p "$out"
out=$(cd "$out" && pwd)
numbers=$out/numbers.txt
: >"$numbers"
limit=${KVX_DEVICE_SECONDS:-460}
left() { echo $((limit - SECONDS)); }
say() { printf '[%3d s] %s\n' "$SECONDS" "$*"; }

nvcc=${NVCC:-$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)}
if [ -z "$nvcc" ]; then
  say "no nvcc here: nothing was run"
  exit 0
fi
work=$(mktemp -d)
logs=$work/logs
mkdir "$logs"
builder=
finish() {
  [ -z "$builder" ] || kill -- "-$builder" 2>/dev/null
  for log in "$logs"/*.log; do
    [ ! -s "$log" ] || { printf '==== %s\n' "$(basename "$log" .log)"; cat "$log"; }
  done >"$out/log.txt"
  rm -rf "$work"
}
trap finish EXIT

# What the GPU is; errors 35 (no driver) and 100 (no device) mean that there is none.
cat >"$work/probe.cu" <<'PROBE'
#include <cstdio>
#include <cuda_runtime.h>
int main() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaDeviceProp p{};
  if (status != cudaSuccess || count == 0 || cudaGetDeviceProperties(&p, 0) != cudaSuccess) {
    std::printf("none %d %s\n", static_cast<int>(status), cudaGetErrorString(status));
    return status == cudaSuccess || status == 35 || status == 100 ? 0 : 1;
  }
  std::printf("%d%d %s, %d multiprocessors, %.0f GiB\n", p.major, p.minor, p.name, p.multiProcessorCount, p.totalGlobalMem / 1073741824.0);
}
PROBE
if ! "$nvcc" -o "$work/probe" "$work/probe.cu" >"$logs/probe.log" 2>&1; then
  cat "$logs/probe.log"
  say "nvcc builds no program"
  exit 1
fi
gpu=$("$work/probe")
found=$?
if [ "${gpu%% *}" = none ]; then
  say "no GPU here (cudart error ${gpu#none }): nothing was run"
  exit $found
fi
architecture=${KVX_CUDA_ARCHITECTURE:-${gpu%% *}}
say "GPU: ${gpu#* }, building for sm_$architecture with $jobs compilers"

doctest=() main=tests/main.cpp
if ! echo '#include <doctest/doctest.h>' | g++ -x c++ -fsyntax-only - 2>/dev/null; then
  packaged=$(find build/packages -path '*/doctest/doctest.h' 2>/dev/null | head -n 1)
  if [ -n "$packaged" ]; then
    doctest=("-I$(dirname "$(dirname "$packaged")")")
  else
    say "no doctest here: tests/device/stand_in takes its place"
    doctest=(-Itests/device/stand_in)
    printf '#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN\n#include <doctest/doctest.h>\n' >"$work/main.cpp"
    main=$work/main.cpp
  fi
fi

flags=(-std=c++20 "-arch=sm_$architecture" -Iinclude -Itests "${doctest[@]}")
kernels=tests/support/compiled_kernels
g++ -std=c++20 -O2 "${flags[@]:2}" -c "$kernels.cpp" -o "$work/compiled_kernels.o" >"$logs/compiled_kernels.log" 2>&1 &
g++ -std=c++20 -O1 "${flags[@]:2}" -c "$main" -o "$work/main.o" >"$logs/main.log" 2>&1 &
wait

build_test() {  # <name>
  "$nvcc" "${flags[@]}" -O1 -split-compile=4 -include "$kernels.hpp" -o "$work/$1" "tests/device/$1.cu" "$work/main.o" "$work/compiled_kernels.o" \
    >"$logs/$1.build.log" 2>&1
}
build_bench() {  # <name>
  "$nvcc" -std=c++20 -O3 "-arch=sm_$architecture" -Iinclude -o "$work/bench_$1" "bench/cuda/$1.cu" >"$logs/bench_$1.build.log" 2>&1
}

# Those that take nvcc longest begin first.
tests=$(ls -S tests/device/*.cu | sed 's|.*/||;s|\.cu$||' | grep -v '^shared_cores$')
first=$(printf '%s\n' $tests | grep '^cache_')
tests="$first $(printf '%s\n' $tests | grep -v '^cache_')"
benches=$(ls bench/cuda/*.cu | sed 's|.*/||;s|\.cu$||')
build_all() {
  local name
  for name in $benches $tests; do
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    case " $benches " in
      *" $name "*) build_bench "$name" ;;
      *) build_test "$name" ;;
    esac && touch "$work/$name.built" || touch "$work/$name.broken" &
  done
  wait
}
benches=$(echo $benches)
set -m  # a process group of its own, so that it can be ended as a whole
build_all &
builder=$!
set +m

passed=0 failed=0 waiting="$tests"
while [ -n "${waiting// /}" ] && [ "$(left)" -gt 60 ]; do  # a minute is kept for the benches
  still=""
  for name in $waiting; do
    if [ -e "$work/$name.broken" ]; then
      say "$name does not build"
      failed=$((failed + 1))
    elif [ -e "$work/$name.built" ]; then
      KVX_TEST_OPERATIONS=300 timeout "$(left)" "$work/$name" >"$logs/$name.log" 2>&1
      status=$?
      if [ $status = 0 ]; then
        passed=$((passed + 1))
        say "$name passes"
      else
        failed=$((failed + 1))
        say "$name fails (exit $status)"
        grep -m 8 -E 'ERROR|FAILED|cuda' "$logs/$name.log"
      fi
    else
      still="$still $name"
    fi
  done
  waiting=$still
  [ -z "${waiting// /}" ] || sleep 1
done
for name in $waiting; do
  failed=$((failed + 1))
  say "$name was not built in time"
done

# Nothing else runs beside the benches.
kill -- "-$builder" 2>/dev/null
wait "$builder" 2>/dev/null
builder=
for name in $benches; do
  if [ ! -e "$work/$name.built" ]; then
    failed=$((failed + 1))
    say "bench $name is not there"
    continue
  fi
  if timeout "$(($(left) > 5 ? $(left) : 5))" "$work/bench_$name" >"$logs/bench_$name.log" 2>&1; then
    grep -v '^#' "$logs/bench_$name.log" >>"$numbers"
  else
    failed=$((failed + 1))
    say "bench $name fails"
  fi
  grep '^#' "$logs/bench_$name.log"
done
printf 'device_tests_passed %d\ndevice_programs_failed %d\ndevice_seconds %d\n' $passed $failed $SECONDS >>"$numbers"
cat "$numbers"
[ $failed = 0 ] || { say "what failed says why in $out/log.txt"; exit 1; }
