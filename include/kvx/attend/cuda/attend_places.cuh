#pragma once
// The loop over tiles of keys: one is computed while those behind it are on their way.

#include <kvx/attend/cuda/key_places.cuh>
#include <kvx/attend/cuda/stage_queries.cuh>
#include <kvx/attend/cuda/stage_rows.cuh>
#include <kvx/attend/cuda/tile_memory.cuh>
#include <kvx/backend/cuda/async_copy.cuh>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// All query rows see all keys.
struct sees_all {
  struct tile {
    static constexpr bool hides = false;
    __device__ static bool sees(int, int) { return true; }
  };
  __device__ tile of(std::int64_t, std::int64_t) const { return {}; }
};

/// Takes the keys at places [first, last) into `tile`; the queries are staged. All threads call.
///
/// shapes      `tile.take(memory, shared, stage, n, Dv, rule, mask)` takes the n keys of a stage; mask.of(place, end) says which rows see
///             which of the keys at [place, end)
/// cost        rows are asked for m.stages - 1 tiles ahead, their addresses one more
template <int Threads, element E, class Tile, class Source, class Mask>
__device__ void attend_places(const tile_memory& m, std::byte* shared, Tile& tile, const Source& source, const key_places& places,
                              std::int64_t first, std::int64_t last, int key_dim, int value_dim, const score_rule& rule, const Mask& mask) {
  clear_key_padding<Threads, E>(m, shared, key_dim);
  std::int64_t asked = first;  // place behind the tiles that were asked for
  int to = 0;                  // stage that the next tile goes to
  row_address<E> next = locate_rows<Threads, E>(m, source, places, asked, last);
  const auto ask = [&] {
    if (asked < last) {
      stage_rows<Threads, E>(m, shared, to, next, last - asked < m.keys ? last - asked : m.keys, key_dim, value_dim);
      asked += m.keys;
      next = locate_rows<Threads, E>(m, source, places, asked, last);
      to = to + 1 < m.stages ? to + 1 : 0;
    }
    end_copies();
  };
  for (int i = 0; i + 1 < m.stages; ++i) ask();
  int stage = 0;
  for (std::int64_t place = first; place < last; place += m.keys) {
    if (m.stages == 1) {
      __syncthreads();
      ask();
    }
    if (m.stages == 3) {
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    __syncthreads();  // the tile is there for all, and all have done with the one before it
    if (m.stages > 1) ask();
    const std::int64_t end = place + m.keys < last ? place + m.keys : last;
    tile.take(m, shared, stage, static_cast<int>(end - place), value_dim, rule, mask.of(place, end));
    stage = stage + 1 < m.stages ? stage + 1 : 0;
  }
  __syncthreads();
}

}  // namespace kvx
