# Sourced by the bench scripts, in the root of the repository: build_bench <target>... builds as users would.
bench_folder=build/bench/bench

# Threads that wait give their core away soon.
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-10000}

build_bench() {
  local log=build/bench/build.log launcher=()
  mkdir -p build/bench
  bash cmake/install-dependencies.sh build/packages >&2
  if command -v ccache >/dev/null; then launcher=(-D CMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  echo "kvx: building $*" >&2
  if ! { cmake -S . -B build/bench -G Ninja -D CMAKE_BUILD_TYPE=Release -D KVX_BUILD_TESTS=OFF "${launcher[@]}" &&
         cmake --build build/bench --target "$@"; } >"$log" 2>&1; then
    cat "$log" >&2
    echo "kvx: the build failed" >&2
    return 1
  fi
}
