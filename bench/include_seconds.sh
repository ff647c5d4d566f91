#!/usr/bin/env bash
# Prints `include_seconds <ratio>`: compile time of a file with only kvx.hpp over that of an empty file, medians of several runs. Their
# difference in seconds stands in the comment below it.
#
# usage: bench/include_seconds.sh [<compiler and flags>]     (default: g++ -std=c++20 -O2)
set -euo pipefail
cd "$(dirname "$0")/.."
compiler=("$@")
[ $# -gt 0 ] || compiler=(g++ -std=c++20 -O2)
runs=9

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
: >"$folder/empty.cpp"
echo '#include <kvx/kvx.hpp>' >"$folder/kvx.cpp"

# Milliseconds of one compilation.
compile() {
  local start end
  start=$(date +%s%N)
  "${compiler[@]}" -I include -c "$folder/$1.cpp" -o "$folder/$1.o"
  end=$(date +%s%N)
  echo $(((end - start) / 1000000))
}

compile kvx >/dev/null # the files are in memory from here on
for ((i = 0; i < runs; ++i)); do # in turns, so that a change of the clock meets both
  compile empty >>"$folder/empty.ms"
  compile kvx >>"$folder/kvx.ms"
done
median() { sort -n "$1" | sed -n "$(((runs + 1) / 2))p"; }
awk -v kvx="$(median "$folder/kvx.ms")" -v empty="$(median "$folder/empty.ms")" 'BEGIN {
  printf "include_seconds %.1f\n", kvx / empty
  printf "# kvx.hpp %.3f s, empty file %.3f s, difference %.3f s\n", kvx / 1000, empty / 1000, (kvx - empty) / 1000
}'
