#pragma once
// The scan on the host: one byte for every key of a head, and the keys with the highest.

#include <kvx/backend/host.hpp>
#include <kvx/backend/simd/dispatch.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/index/bucket_score.hpp>
#include <kvx/index/sign_buckets.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/sketch/key_sketch.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#if defined(__CUDACC__)
#pragma nv_diagnostic push
#pragma nv_diag_suppress 1675  // nvcc hands `#pragma GCC unroll` on to the host compiler, but warns of it
#endif

namespace kvx {

/// The keys of one head that a search looks at: tokens [begin, end) of a page table, by their columns.
///
/// shapes      pages (ceil(end / P)); entries before that of `begin` are not read
struct bucket_zone {
  page_shape page;
  key_columns columns;
  std::int64_t head = 0;
  const std::int32_t* pages = nullptr;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t first_page() const { return begin / page.tokens; }
  std::int64_t last_page() const { return end > begin ? ceil_div(end, page.tokens) : first_page(); }
  const std::byte* block(sketch_column c, std::int64_t i) const { return columns[c].at(pages[i], head); }
};

/// A prepared query of a group: made by prepare_sign_sums or prepare_votes in memory of the caller, then read by any number of scans.
struct bucket_query {
  bucket_scoring::rule score = bucket_scoring::rule::sign_sum;
  int dim = 0;
  bool norms = false;  ///< keys have norm bytes
  simd::sign_scan sums;
  simd::vote_scan votes;
  const float* page_queries = nullptr;   ///< (heads, page_pitch): see scan_table::page_dots; null: pages add nothing
  std::int64_t page_pitch = 0;
  const double* page_scales = nullptr;   ///< (heads) words for one unit of a page dot, 24 significant bits: products are exact
  const double* head_offsets = nullptr;  ///< (heads) what the head adds, in words
  float* page_dots = nullptr;            ///< (pages from first_page() on, heads), or null: where a scan leaves the page dots
};

static_assert([] {  // the kernels' table of norms is that of the scalar arithmetic
  for (int i = 0; i < 64; ++i) {
    if (simd::eighth_powers[i % 8] >> (1 + i / 8) != norm_factor(255, static_cast<std::uint8_t>(255 - i))) return false;
  }
  return true;
}());

/// Heads of a group at most.
inline constexpr int most_group_heads = 256;

/// What entry i of the page table adds to each head's score, in words.
inline void page_offsets(const simd::scan_table& kernels, const bucket_query& q, const bucket_zone& z, std::int64_t i,
                         std::int16_t* offsets) {
  const int heads = q.sums.heads;
  if (q.page_queries == nullptr) {
    for (int g = 0; g < heads; ++g) offsets[g] = word_of(q.head_offsets[g]);
    return;
  }
  float scratch[most_group_heads];
  float* const dots = q.page_dots != nullptr ? q.page_dots + (i - z.first_page()) * heads : scratch;
  kernels.page_dots(q.page_queries, q.page_pitch, heads, reinterpret_cast<const bf16*>(z.block(column_means, i)), q.dim, dots);
  kernels.page_words(dots, q.page_scales, q.head_offsets, heads, offsets);
}

/// Pages from one that is scored to one that is asked for.
inline constexpr std::int64_t pages_ahead = 2;

/// Asks for the columns of a page that the scan will read soon.
inline void prefetch_block(const std::byte* block, std::int64_t bytes) {
  for (std::int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(block + b, 0, 3);
}

/// Scores of a whole page, without regard to begin and end, while the signs of a later one are fetched. scores (tokens of the page).
inline void score_page(const simd::scan_table& kernels, const bucket_query& q, const bucket_zone& z, std::int64_t i, std::uint8_t* scores,
                       const std::byte* next = nullptr) {
  const int planes = plane_bytes(q.dim), tokens = z.page.tokens;
  simd::scan_page page{reinterpret_cast<const std::uint8_t*>(z.block(column_signs, i)), nullptr, tokens, tokens,
                       reinterpret_cast<const std::uint8_t*>(next)};
  if (q.norms) page.norms = reinterpret_cast<const std::uint8_t*>(z.block(column_norms, i));
  std::int16_t offsets[most_group_heads];
  if (q.score == bucket_scoring::rule::sign_sum) page_offsets(kernels, q, z, i, offsets);
  // A page of less than a block is laid out as a block; what lies beyond its tokens is scored and dropped.
  std::uint8_t signs[plane_bytes(576) * simd::scan_block], norms[simd::scan_block] = {}, bytes[simd::scan_block];
  const bool small = tokens < simd::scan_block;
  if (small) {
    for (int p = 0; p < planes; ++p) {
      std::memset(signs + p * simd::scan_block, 0, simd::scan_block);
      std::memcpy(signs + p * simd::scan_block, page.signs + p * tokens, static_cast<std::size_t>(tokens));
    }
    if (q.norms) std::memcpy(norms, page.norms, static_cast<std::size_t>(tokens));
    page = {signs, q.norms ? norms : nullptr, simd::scan_block, simd::scan_block, nullptr};
  }
  std::uint8_t* const out = small ? bytes : scores;
  if (q.score == bucket_scoring::rule::sign_sum) {
    kernels.sign_scores(q.sums, page, offsets, out);
  } else {
    kernels.vote_scores(q.votes, page, out);
  }
  if (small) std::memcpy(scores, bytes, static_cast<std::size_t>(tokens));
}

/// Scores the keys of some pages of a zone.
///
/// what        the score byte of every token; tokens of these pages outside [begin, end) get no_score
/// shapes      scores ((last - first) * P): token (first * P + i) at i. Pieces of a zone may be scanned by several threads at once, into
///             parts of one array
/// exactness   integers: the same bytes for every instruction set, compiler and split of the pages
/// cost        reads signs, norms and page means once: 21 bytes a key at D 128, whatever the size of the group
/// errors      usage_error where pages or scores do not fit the zone
inline void scan_buckets(const host&, const bucket_query& q, const bucket_zone& z, std::int64_t first, std::int64_t last,
                         std::span<std::uint8_t> scores, call_site where = call_site::here()) {
  require_range("scan_buckets: first page", first, z.first_page(), z.last_page(), where);
  require_range("scan_buckets: last page", last, first, z.last_page(), where);
  const std::int64_t tokens = z.page.tokens;
  require(static_cast<std::int64_t>(scores.size()) >= (last - first) * tokens, "scan_buckets: scores are fewer than the pages' tokens",
          where);
  const simd::scan_table& kernels = simd::scan_kernels();
  for (std::int64_t i = first; i < last; ++i) {
    const std::byte* next = nullptr;
    if (i + pages_ahead < last) {
      next = z.block(column_signs, i + pages_ahead);
      if (q.norms) prefetch_block(z.block(column_norms, i + pages_ahead), tokens);
      if (q.page_queries != nullptr) prefetch_block(z.block(column_means, i + pages_ahead), q.dim * 2);
    }
    std::uint8_t* const out = scores.data() + (i - first) * tokens;
    score_page(kernels, q, z, i, out, next);
    const std::int64_t from = z.begin - i * tokens, to = z.end - i * tokens;
    if (from > 0) std::fill(out, out + from, no_score);
    if (to < tokens) std::fill(out + to, out + tokens, no_score);
  }
}

/// The level that the scores of an even sample say `wanted` of n keys reach.
inline int likely_level(std::span<const std::uint8_t> scores, std::int64_t wanted) {
  constexpr std::int64_t samples = 512;
  const auto n = static_cast<std::int64_t>(scores.size());
  std::uint16_t histogram[256] = {};
  for (std::int64_t i = 0; i < samples; ++i) ++histogram[scores[static_cast<std::size_t>(i * n / samples)]];
  std::int64_t reach = 0;
  int level = 255;
  while (level > 1 && (reach += histogram[level]) * n < wanted * samples) --level;
  return level;
}

/// The cut that takes `wanted` keys of the highest scores, or all that have one.
///
/// what        cut_of a histogram, by counting the bytes above a level, which is so cheap that three passes over the scores cost a
///             fifteenth of a histogram: from the level that a sample proposes upwards or downwards, in steps that double, then by
///             bisection
/// shapes      scores (n), of any number of scans side by side
inline candidate_cut cut_of(const host&, std::span<const std::uint8_t> scores, std::int64_t wanted) {
  const simd::scan_table& kernels = simd::scan_kernels();
  const auto n = static_cast<std::int64_t>(scores.size());
  candidate_cut cut;
  if (wanted <= 0) return cut;
  // Of the levels from 1 on, the highest that as many keys reach; `reach` keys reach it, `above` the next.
  int low = 1, high = 255, probe = n > 0 ? likely_level(scores, wanted) : 1, stride = 1;
  std::int64_t reach = -1, above = 0;
  bool up = false, down = false;
  while (low < high) {
    const int level = std::clamp(probe, low + 1, high);
    const std::int64_t keys = kernels.count_above(scores.data(), n, level - 1);
    if (keys >= wanted) {
      low = level;
      reach = keys;
      up = true;
    } else {
      high = level - 1;
      above = keys;
      down = true;
    }
    probe = up && down ? (low + high + 1) / 2 : up ? low + stride : high + 1 - stride;
    stride *= 2;
  }
  if (reach < 0) reach = kernels.count_above(scores.data(), n, 0);
  cut.level = low;
  cut.count = std::min(reach, wanted);
  cut.ties = cut.count - above;
  return cut;
}

/// The tokens of the highest scores, ascending.
///
/// what        those that the cut takes: ties go to the lowest token. The cut's ties are used up, so scores may come in pieces, in order
/// shapes      scores (n) of tokens first, first + 1, ...; out at least as many as are taken, in all pieces at most cut.count
/// cost        one pass over the scores
inline std::int64_t select_candidates(const host&, std::span<const std::uint8_t> scores, std::int64_t first, candidate_cut& cut,
                                      std::int32_t* out) {
  return simd::scan_kernels().select(scores.data(), static_cast<std::int64_t>(scores.size()), cut.level, cut.ties,
                                     static_cast<std::int32_t>(first), out);
}

}  // namespace kvx

#if defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif
