#!/usr/bin/env bash
# Searches the same keys by kvx, faiss and hnswlib: recall, time of a query, time to insert a key, as lines "name value" that are kept in
# build/results/peers.txt. Takes a quarter of an hour. A peer that cannot be installed is left out.
#
# usage: bash bench/peers.sh [<filter> [<keys> [<best>]]]
#   <filter>  only names that contain it
#   <keys>    131072 unless given
#   <best>    so many are searched for: 100 unless given; 192, twelve pages of 16, has a file of its own, peers_192.txt
set -euo pipefail
cd "$(dirname "$0")/.."
source bench/build.sh

if [ ! -f /usr/include/hnswlib/hnswlib.h ] && command -v apt-get >/dev/null; then
  root=()
  [ "$(id -u)" = 0 ] || root=(sudo)
  { "${root[@]}" apt-get update -q && "${root[@]}" apt-get install -y -q --no-install-recommends libhnswlib-dev; } >/dev/null 2>&1 ||
    echo "kvx: libhnswlib-dev cannot be installed" >&2
fi
packages=build/packages/peers
if [ ! -d $packages/faiss ]; then
  python3 -m pip install -q --disable-pip-version-check --root-user-action ignore --target $packages faiss-cpu==1.15.1 numpy==2.4.6 >&2 ||
    echo "kvx: faiss-cpu cannot be installed" >&2
fi

build_bench bench_peers
mkdir -p build/results
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$packages
best=${3:-100}
results=build/results/peers.txt
[ "$best" = 100 ] || results=build/results/peers_$best.txt
python3 bench/peers/peers.py "$bench_folder/peers/libbench_peers.so" "${1:-}" "${2:-131072}" "$best" |
  tee -a "$results"
