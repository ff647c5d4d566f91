#pragma once
// The scan on a device: one byte for every key of a zone, histograms of these, and where each chunk's candidates will begin.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/dynamic_shared.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/element.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/index/cuda/bucket_search.cuh>
#include <kvx/index/cuda/byte_histogram.cuh>
#include <kvx/index/cuda/sign_scores.cuh>
#include <kvx/index/cuda/sign_sums.cuh>
#include <kvx/index/cuda/unit_zone.cuh>
#include <kvx/layout/device_batch.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// The part of a zone that one block scores.
///
/// start, tokens       places: token first * P + start and so on
/// page, pages         entries of the page table, of which the first may begin within (pages longer than a chunk)
struct scanned_chunk {
  std::int64_t unit, head, chunk, start;
  int tokens;
  std::int64_t page;
  int pages;
  int slot;
};

/// The chunk of a block; no tokens where there is none.
__device__ __forceinline__ scanned_chunk chunk_of_block(const bucket_search& s, const unit_zone& zone, unsigned block = blockIdx.x) {
  const std::int64_t P = s.page.tokens, first = zone.first_page(P), places = zone.end > zone.begin ? zone.end - first * P : 0;
  scanned_chunk c;
  c.unit = block / s.chunks;
  c.chunk = block % s.chunks;
  c.head = c.unit % s.heads;
  c.start = c.chunk * s.chunk;
  const std::int64_t left = places - c.start;
  c.tokens = static_cast<int>(left < 0 ? 0 : left < s.chunk ? left : s.chunk);
  c.page = first + c.start / P;
  c.slot = static_cast<int>(c.start % P);
  c.pages = static_cast<int>((c.slot + c.tokens + P - 1) / P);
  return c;
}

/// Shared memory of a scan beside that of its scorer.
struct scan_shared {
  std::uint32_t* histogram;  // (256)
  std::int32_t* ids;         // (pages of a chunk) of the columns' pages

  KVX_HD scan_shared(scratch_parts& shared, int pages)
      : histogram(shared.take<std::uint32_t>(256)), ids(shared.take<std::int32_t>(pages)) {}
};

/// Pages of a chunk at most.
KVX_HD constexpr int pages_of_chunk(const bucket_search& s) { return s.chunk > s.page.tokens ? s.chunk / s.page.tokens : 1; }

/// Scores of the tokens of a chunk, to memory, and their histogram. score(page, slot, keys): bytes of `keys` keys, 0 for those never found.
template <int Threads, class Score>
__device__ __forceinline__ void score_chunk(const bucket_search& s, const unit_zone& zone, const scanned_chunk& c, std::uint32_t* histogram,
                                            const Score& score) {
  const int P = s.page.tokens, keys = keys_at_once(P);
  std::uint8_t* const out = s.scores_of(c.unit) + c.start;
  const std::int64_t first = c.page * P + c.slot;  // token of the chunk's first place
  for (int i = static_cast<int>(threadIdx.x) * keys; i < c.tokens; i += Threads * keys) {
    const int place = c.slot + i, page = place / P, slot = place % P;
    std::uint32_t scores = 0;
    if (first + i + keys > zone.begin) scores = score(page, slot, keys);
    for (int j = 0; j < keys; ++j) {
      const std::int64_t token = first + i + j;
      if (token < zone.begin || token >= zone.end) scores &= ~(255u << 8 * j);
      const std::uint32_t byte = scores >> 8 * j & 255;
      if (byte != no_score) atomicAdd(&histogram[byte], 1u);
    }
    if (keys == 4) {
      *reinterpret_cast<std::uint32_t*>(out + i) = scores;
    } else {
      for (int j = 0; j < keys; ++j) out[i + j] = static_cast<std::uint8_t>(scores >> 8 * j);
    }
  }
}

/// What the last block of a unit does: the cut through the histogram of all chunks, and where each chunk's candidates begin.
template <int Threads>
__device__ __forceinline__ void cut_unit(const bucket_search& s, const unit_zone& zone, const scanned_chunk& c, std::int64_t chunks,
                                         int& level) {
  __shared__ block_scratch<std::uint64_t, Threads> sums;
  if (warp_of_thread() == 0) {
    const candidate_cut cut = warp_histogram(s.histograms + c.unit * 256).cut(s.wanted(zone.tokens(), zone.committed));
    if (lane_of_thread() == 0) {
      s.cuts[c.unit] = cut;
      s.counts[c.unit] = static_cast<std::int32_t>(cut.count);
      level = cut.count > 0 ? cut.level : 0;
    }
  }
  __syncthreads();
  const int at = level;
  if (at == 0) return;
  std::uint64_t before = 0;  // keys above the level in the high half, keys of the level in the low half
  for (std::int64_t first = 0; first < chunks; first += Threads) {
    const std::int64_t chunk = first + threadIdx.x;
    std::uint64_t keys = 0, all = 0;
    if (chunk < chunks) {
      const std::uint16_t* const above = s.above + (c.unit * s.chunks + chunk) * 256 + at;
      keys = std::uint64_t{above[0]} << 32 | static_cast<std::uint32_t>(above[-1] - above[0]);
    }
    const std::uint64_t start = before + block_exclusive_sum(keys, sums, all);
    if (chunk < chunks) s.starts[c.unit * s.chunks + chunk] = {static_cast<std::uint32_t>(start >> 32), static_cast<std::uint32_t>(start)};
    before += all;
  }
}

/// Hands a chunk's histogram on; the last block of a unit makes the cut.
template <int Threads>
__device__ __forceinline__ void finish_chunk(const bucket_search& s, const unit_zone& zone, const scanned_chunk& c,
                                             const std::uint32_t* histogram) {
  __shared__ int last_or_level;
  for (int i = static_cast<int>(threadIdx.x); i < 256; i += Threads) {
    if (histogram[i] != 0) atomicAdd(&s.histograms[c.unit * 256 + i], histogram[i]);
  }
  if (warp_of_thread() == 0) {
    std::int64_t more[8];
    warp_histogram(histogram).keys_above(more);
    std::uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = static_cast<std::uint32_t>(more[2 * i]) | static_cast<std::uint32_t>(more[2 * i + 1]) << 16;
    auto* const out = reinterpret_cast<uint4*>(s.above + (c.unit * s.chunks + c.chunk) * 256);
    out[lane_of_thread()] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  }
  const std::int64_t places = zone.end - zone.first_page(s.page.tokens) * s.page.tokens, chunks = ceil_div(places, s.chunk);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last_or_level = atomicAdd(&s.tickets[c.unit], 1u) == static_cast<std::uint32_t>(chunks - 1) ? 1 : 0;
  __syncthreads();
  const bool last = last_or_level != 0;
  __syncthreads();
  if (!last) return;
  __threadfence();
  if (threadIdx.x == 0) s.tickets[c.unit] = 0;
  cut_unit<Threads>(s, zone, c, chunks, last_or_level);
}

/// Whether this block has nothing to score. The first block of a unit with an empty zone says that nothing is found.
__device__ __forceinline__ bool nothing_to_scan(const bucket_search& s, const unit_zone& zone, const scanned_chunk& c) {
  if (c.tokens > 0) return false;
  if (c.chunk == 0 && zone.tokens() <= 0 && threadIdx.x == 0) {
    s.cuts[c.unit] = candidate_cut{};
    s.counts[c.unit] = 0;
  }
  return true;
}

/// Reads the page ids of a chunk and clears its histogram. A barrier must follow.
template <int Threads>
__device__ __forceinline__ void begin_chunk(const unit_zone& zone, const scanned_chunk& c, const scan_shared& shared) {
  for (int i = static_cast<int>(threadIdx.x); i < c.pages; i += Threads) shared.ids[i] = zone.pages[c.page + i];
  for (int i = static_cast<int>(threadIdx.x); i < 256; i += Threads) shared.histogram[i] = 0;
}

/// Where the signs of a slot lie, and its norm byte or null.
struct slot_columns {
  const std::uint8_t* signs;
  const std::uint8_t* norms;

  __device__ __forceinline__ slot_columns(const bucket_search& s, const scanned_columns& columns, std::int32_t page, std::int64_t head,
                                          int slot)
      : signs(reinterpret_cast<const std::uint8_t*>(columns.signs.at(page, head)) + slot),
        norms(s.sketch.norms ? reinterpret_cast<const std::uint8_t*>(columns.norms.at(page, head)) + slot : nullptr) {}
};

template <int Threads, int Words, bool Wide>
__global__ void __launch_bounds__(Threads)
    scan_sign_sums_kernel(const bucket_search s, const scanned_columns columns, const device_batch batch) {
  __shared__ unit_zone zone;
  share_zone(s, batch, blockIdx.x / s.chunks, zone);
  const scanned_chunk c = chunk_of_block(s, zone);
  if (nothing_to_scan(s, zone, c)) return;
  scratch_parts parts{dynamic_shared<std::byte>()};
  const int dim = s.page.key_dim, planes = plane_bytes(dim), P = s.page.tokens;
  const sign_scorer scorer(parts, sign_sum_record_of(s.sketch, s.by, dim, s.group), pages_of_chunk(s));
  const scan_shared shared(parts, pages_of_chunk(s));
  const std::byte* const prepared = s.queries + c.unit * s.query_pitch;
  begin_chunk<Threads>(zone, c, shared);
  copy_words(prepared, scorer.record, scorer.at.page_queries, Threads);
  if (scorer.at.page_dim > 0) scorer.fetch_queries(prepared, 0, Threads);
  __syncthreads();
  scorer.fill_factors(Threads);
  const std::int64_t first = c.page - zone.first_page(P);  // page of the zone
  scorer.fill_words<Threads, Words>(
      prepared, true, dim, c.pages, [&](int p) { return reinterpret_cast<const bf16*>(columns.means.at(shared.ids[p], c.head)); },
      [&](int p, int head, float dot) {
        if (s.page_dots != nullptr && (p > 0 || c.slot == 0)) s.page_dots_of(c.unit)[(first + p) * s.group + head] = dot;
      });
  score_chunk<Threads>(s, zone, c, shared.histogram, [&](int page, int slot, int keys) {
    const slot_columns at(s, columns, shared.ids[page], c.head, slot);
    return scorer.score<Words, Wide>(at.signs, P, planes, at.norms, keys, page);
  });
  __syncthreads();
  finish_chunk<Threads>(s, zone, c, shared.histogram);
}

/// Scores the keys of all units' zones by their prepared queries.
///
/// what        the score byte of every token; the cut through each zone's scores, by the number of candidates that its length asks for;
///             page dots where leaves_page_dots()
/// shapes      see bucket_search; batch: under the page ids of the columns. Lengths are read on the device
/// exactness   integers: the host's bytes and cut, for every size of chunks
/// cost        reads signs, norms and page means once: 21 bytes a key at D 128 for up to 16 heads (8 where D > 256); writes one byte a key,
///             and 512 a chunk
inline void scan_sign_sums(const device& exec, const bucket_search& s, const scanned_columns& columns, const device_batch& batch,
                           call_site where = call_site::here()) {
  require_device_search(s, where);
  constexpr int threads = 256;
  scratch_parts shared;
  sign_scorer(shared, sign_sum_record_of(s.sketch, s.by, s.page.key_dim, s.group), pages_of_chunk(s));
  scan_shared(shared, pages_of_chunk(s));
  for_sign_sum_shape(s, [&](auto words, auto wide) {
    const launch_shape shape{dim3(static_cast<unsigned>(s.units() * s.chunks)), threads, static_cast<std::size_t>(shared.used)};
    launch(exec, shape, scan_sign_sums_kernel<threads, decltype(words)::value, decltype(wide)::value>, s, columns, batch);
  });
}

}  // namespace kvx
