#!/usr/bin/env bash
# Measures kvx, and prints what it measured as lines "name value".
#
# usage: bash bench/run.sh speed|quality|peers|plots [<filter>]
#   speed     attention and the stages around it against the memory's and the processor's own speed
#   quality   how far each cache's predictions are from those of the full cache, on a real model and two texts; its attention from exact
#             attention over a recorded trace (trace_)
#   peers     kvx's search beside faiss and hnswlib
#   plots     pictures in docs/, from what was measured
#   <filter>  only the names that contain it
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
  speed | quality | peers | plots) mode=$1; shift; exec bash "bench/$mode.sh" "$@" ;;
  -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" ;;
  *) echo "bench/run.sh: '${1:-}' is none of speed, quality, peers and plots; --help says more" >&2; exit 2 ;;
esac
