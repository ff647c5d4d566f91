#pragma once
// Search by votes on a device: keys of each bucket, weights of the buckets, and the scan.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/dynamic_shared.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/check.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/index/bucket_score.hpp>
#include <kvx/index/cuda/bucket_search.cuh>
#include <kvx/index/cuda/scan_buckets.cuh>
#include <kvx/index/cuda/vote_block.cuh>
#include <kvx/index/cuda/vote_scores.cuh>
#include <kvx/layout/device_batch.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

template <int Threads>
__global__ void __launch_bounds__(Threads)
    count_buckets_kernel(const bucket_search s, const scanned_columns columns, const device_batch batch) {
  __shared__ unit_zone zone;
  share_zone(s, batch, blockIdx.x / s.chunks, zone);
  const scanned_chunk c = chunk_of_block(s, zone);
  if (c.tokens <= 0) return;
  const int planes = plane_bytes(s.page.key_dim), P = s.page.tokens;
  scratch_parts parts{dynamic_shared<std::byte>()};
  auto* const counts = parts.take<std::uint32_t>(256 * planes);
  auto* const ids = parts.take<std::int32_t>(pages_of_chunk(s));
  for (int i = static_cast<int>(threadIdx.x); i < 256 * planes; i += Threads) counts[i] = 0;
  for (int i = static_cast<int>(threadIdx.x); i < c.pages; i += Threads) ids[i] = zone.pages[c.page + i];
  __syncthreads();
  const int keys = keys_at_once(P), groups = (c.tokens + keys - 1) / keys;
  const std::int64_t first = c.page * P + c.slot;
  for (int i = static_cast<int>(threadIdx.x); i < groups * planes; i += Threads) {
    const int plane = i / groups, place = i % groups * keys, slot = (c.slot + place) % P;
    const auto* const signs = reinterpret_cast<const std::uint8_t*>(columns.signs.at(ids[(c.slot + place) / P], c.head));
    const std::uint32_t bytes = load_keys(signs + plane * P + slot, keys);
    for (int j = 0; j < keys; ++j) {
      const std::int64_t token = first + place + j;
      if (token >= zone.begin && token < zone.end) atomicAdd(&counts[256 * plane + static_cast<int>(bytes >> 8 * j & 255)], 1u);
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 256 * planes; i += Threads) {
    if (counts[i] != 0) atomicAdd(&s.buckets[c.unit * 256 * planes + i], counts[i]);
  }
}

/// Keys of each value of each plane byte, of all units' zones.
///
/// shapes      counts to s.buckets (units, planes, 256)
/// exactness   integers
/// cost        one read of the signs; a kernel and the clearing of the counts
inline void count_buckets(const device& exec, const bucket_search& s, const scanned_columns& columns, const device_batch& batch,
                          call_site where = call_site::here()) {
  require_device_search(s, where);
  require(s.by.score == bucket_scoring::rule::votes, "count_buckets: only votes need counts", where);
  constexpr int threads = 256;
  const int planes = plane_bytes(s.page.key_dim);
  const auto bytes = static_cast<std::size_t>(s.units() * 256 * planes) * sizeof(std::uint32_t);
  const current_device here(exec.ordinal);
  check("cudaMemsetAsync", cudaMemsetAsync(s.buckets, 0, bytes, exec.stream), where);
  scratch_parts shared;
  shared.take<std::uint32_t>(256 * planes);
  shared.take<std::int32_t>(pages_of_chunk(s));
  launch(exec, {dim3(static_cast<unsigned>(s.units() * s.chunks)), threads, static_cast<std::size_t>(shared.used)},
         count_buckets_kernel<threads>, s, columns, batch);
}

template <int Threads>
__global__ void __launch_bounds__(Threads, 1)
    prepare_votes_kernel(const bucket_search s, const device_batch batch, const device_queries in) {
  __shared__ unit_zone zone;
  const std::int64_t unit = blockIdx.x;
  share_zone(s, batch, unit, zone);
  prepare_votes<Threads>(s, zone, unit, in.of_unit(unit, s.group, s.page.key_dim), dynamic_shared<std::byte>());
}

/// Prepares the searches of all units by votes of the mean query, from s.buckets.
///
/// errors      usage_error for shapes that do not fit; queries that are not finite are left out of the mean
/// cost        one block a unit: a sort of 256 buckets a subspace by one warp
inline void prepare_votes(const device& exec, const bucket_search& s, const device_batch& batch, const device_queries& in,
                          call_site where = call_site::here()) {
  require_device_search(s, where);
  require(can_score(s.sketch, voting), "prepare_votes: subspace must be 4 or 8", where);
  constexpr int threads = 256;
  launch(exec, {dim3(static_cast<unsigned>(s.units())), threads, static_cast<std::size_t>(prepare_votes_shared<threads>(s))},
         prepare_votes_kernel<threads>, s, batch, in);
}

template <int Threads, int Subspace>
__global__ void __launch_bounds__(Threads)
    scan_votes_kernel(const bucket_search s, const scanned_columns columns, const device_batch batch) {
  __shared__ unit_zone zone;
  share_zone(s, batch, blockIdx.x / s.chunks, zone);
  const scanned_chunk c = chunk_of_block(s, zone);
  if (nothing_to_scan(s, zone, c)) return;
  scratch_parts parts{dynamic_shared<std::byte>()};
  const int dim = s.page.key_dim, planes = plane_bytes(dim), P = s.page.tokens;
  const vote_scorer<Subspace> scorer{parts.take<std::byte>(vote_table_bytes(s.sketch, dim)), vote_shift(subspaces(s.sketch, dim))};
  const scan_shared shared(parts, pages_of_chunk(s));
  begin_chunk<Threads>(zone, c, shared);
  copy_words(s.queries + c.unit * s.query_pitch, scorer.weights, vote_table_bytes(s.sketch, dim), Threads);
  __syncthreads();
  score_chunk<Threads>(s, zone, c, shared.histogram, [&](int page, int slot, int keys) {
    const slot_columns at(s, columns, shared.ids[page], c.head, slot);
    return scorer.score(at.signs, P, planes, at.norms, keys);
  });
  __syncthreads();
  finish_chunk<Threads>(s, zone, c, shared.histogram);
}

/// Scores the keys of all units' zones by votes; otherwise as scan_sign_sums.
inline void scan_votes(const device& exec, const bucket_search& s, const scanned_columns& columns, const device_batch& batch,
                       call_site where = call_site::here()) {
  require_device_search(s, where);
  constexpr int threads = 256;
  scratch_parts shared;
  shared.take<std::byte>(vote_table_bytes(s.sketch, s.page.key_dim));
  scan_shared(shared, pages_of_chunk(s));
  const launch_shape shape{dim3(static_cast<unsigned>(s.units() * s.chunks)), threads, static_cast<std::size_t>(shared.used)};
  if (s.sketch.subspace == 8) {
    launch(exec, shape, scan_votes_kernel<threads, 8>, s, columns, batch);
  } else {
    launch(exec, shape, scan_votes_kernel<threads, 4>, s, columns, batch);
  }
}

}  // namespace kvx
