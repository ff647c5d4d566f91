#pragma once
// Logits of a group's queries with rows that lie anywhere, on the host.

#include <kvx/backend/simd/dispatch.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/logit_scale.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/tensor_view.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace kvx {

/// Most queries of a group.
inline constexpr int most_row_queries = 128;

/// Queries as the kernels of rows take them: scaled, in lane order, zero behind D.   data (G, pitch)
struct row_queries {
  const float* data = nullptr;
  std::int64_t pitch = 0;
  int group = 0;
  int dim = 0;
};

constexpr std::int64_t row_query_pitch(std::int64_t dim) { return round_up(dim, simd::padding); }

/// Prepares queries for rows of E.
///
/// shapes      queries (G, D), G <= most_row_queries; to (G, row_query_pitch(D)), at a multiple of 64 bytes
/// units       scale 0 means 1 / sqrt(D)
template <element E>
row_queries prepare_row_queries(tensor_view<const float, 2> queries, float scale, float* to) {
  const std::int64_t G = queries.extents[0], D = queries.extents[1], pitch = row_query_pitch(D);
  const simd::kernel_table& kernels = simd::kernels();
  const float factor = logit_scale(scale, D);
  std::fill_n(to, G * pitch, 0.0f);
  for (std::int64_t g = 0; g < G; ++g) {
    for (std::int64_t d = 0; d < D; ++d)
      to[g * pitch + simd::lane_position<E>(static_cast<int>(d), kernels.lanes)] = *queries.at(g, d) * factor;
  }
  return {to, pitch, static_cast<int>(G), static_cast<int>(D)};
}

/// Logits of rows [first, last) of a list, on the caller's thread. One that is not finite becomes NaN: such a row is never found.
///
/// find        address of row i of the list; asked for in order, a block ahead
/// shapes      logits (G, list), rows dense: columns [first, last) are written
/// cost        reads the rows once for all queries
/// exactness   float sums; instruction sets differ by rounding
template <element E, class Find>
void row_logits(const row_queries& queries, std::int64_t first, std::int64_t last, const Find& find, tensor_view<float, 2> logits) {
  const simd::row_kernels<E>& kernels = simd::kernels().rows<E>();
  const E* addresses[2][simd::block_tokens];
  const E **now = addresses[0], **next = addresses[1];
  float scores[most_row_queries * simd::block_tokens];                                              // (G, block_tokens)
  const auto gather = [&](std::int64_t begin, const E** rows) {
    const auto n = static_cast<int>(std::clamp<std::int64_t>(last - begin, 0, simd::block_tokens));
    for (int t = 0; t < n; ++t) rows[t] = find(begin + t);
    return n;
  };
  std::int64_t begin = first;
  for (int n = gather(begin, now); n > 0;) {
    const int ahead = gather(begin + n, next);
    kernels.dots(queries.data, queries.pitch, queries.group, now, n, next, ahead, queries.dim, scores);
    for (std::int64_t g = 0; g < queries.group; ++g) {
      const float* const from = scores + g * simd::block_tokens;
      std::transform(from, from + n, logits.at(g, begin), [](float x) { return is_finite(x) ? x : quiet_nan; });
    }
    begin += n;
    n = ahead;
    std::swap(now, next);
  }
}

}  // namespace kvx
