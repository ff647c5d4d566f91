#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests of kvx.
#
# usage: bash tests/run.sh [--quick | --all] [--jobs N]
#   (nothing)  what a change must pass: every test, sanitizers, instruction sets, compilers, consumers (docs/testing.md)
#   --quick    for the desk: one build of little optimisation, its tests but the real model's, the checks of the text
#   --all      every compiler, sanitizer and order
#   --jobs N   so many compilers and tests at once (default: one a core)
set -euo pipefail
cd "$(dirname "$0")/.."

matrix=ci
jobs=$(nproc)
while [ $# -gt 0 ]; do
  case $1 in
    --quick) matrix=desk ;;
    --all) matrix=all ;;
    --jobs) jobs=${2:?--jobs needs a number}; shift ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) echo "tests/run.sh: '$1' is no option; --help lists them" >&2; exit 2 ;;
  esac
  shift
done

build=$PWD/build/tests
[ $matrix != desk ] || build=$PWD/build/quick
mkdir -p "$build"
log=$build/run.log
: >"$log"

say() { printf '\n[%s] %s\n' "$(date +%T)" "$*"; }

# step <what> <command...>: silent when it succeeds, the whole log when it fails.
step() {
  say "$1"
  shift
  "$@" >>"$log" 2>&1 || { cat "$log"; say "failed: $*"; exit 1; }
}

# Shows ninja's lines a few times a minute instead of hundreds.
tenths() {
  local line last=-1 done total
  while IFS= read -r line; do
    printf '%s\n' "$line" >>"$log"
    if [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]]; then
      done=$((10 * BASH_REMATCH[1] / BASH_REMATCH[2])) total=${BASH_REMATCH[2]}
      if [ $done -gt $last ]; then printf '  %3d %% of %d\n' $((10 * done)) "$total"; last=$done; fi
    fi
  done
}

say "packages"
bash cmake/install-dependencies.sh build/packages
bash examples/model.sh build/model >/dev/null || echo "kvx: tests on the real model are left out"

launcher=()
if command -v ccache >/dev/null; then
  launcher=(-D CMAKE_CXX_COMPILER_LAUNCHER=ccache)
  export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1  # another clone finds what this one has compiled
fi
bench=ON
options=() tests=()
# Minutes of nvcc, whose parts check/nvcc compiles, minutes of benches, of which the tests need a few, and minutes of optimisation.
[ $matrix = all ] ||
  options=(-D KVX_DEVICE_EXAMPLES=OFF -D KVX_BENCH_ON_DEMAND=ON -D CMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -D KVX_DECODE_LOOP_OPTIMISE=-O1)
if [ $matrix = desk ]; then
  bench=OFF
  # Nothing is optimised but inner loops, and clang takes half the time of g++.
  options+=(-D CMAKE_CXX_FLAGS_RELWITHDEBINFO=-O0 -D KVX_DECODE_LOOP_OPTIMISE=-O0 -D KVX_TEST_LOOPS_OPTIMISE=-O1 -D KVX_EXAMPLES_ON_DEMAND=ON)
  ! command -v clang++ >/dev/null || options+=(-D CMAKE_CXX_COMPILER=clang++)
  tests=(-E '^decode_loop/real_model$')
  export KVX_TEST_OPERATIONS=${KVX_TEST_OPERATIONS:-1000}
fi
step "configure ($matrix)" cmake --preset default -B "$build" -D KVX_TEST_MATRIX=$matrix -D KVX_TEST_BATCHES=ON -D KVX_BUILD_BENCH=$bench \
  -D "KVX_PACKAGES=$PWD/build/packages" "${options[@]}" "${launcher[@]}"

say "build"
cmake --build "$build" -j "$jobs" 2>&1 | tenths || { cat "$log"; say "the build failed"; exit 1; }

say "test"
ctest --test-dir "$build" -j "$jobs" --output-on-failure --no-tests=error "${tests[@]}"
