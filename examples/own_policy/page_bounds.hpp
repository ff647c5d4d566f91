#pragma once
// A policy written outside the library: for each page the bounds of its keys, and the pages that a query may need by them.

#include <kvx/kvx.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

/// Keeps, of each page and KV head, the smallest and the largest value of every key component.
///
/// shapes      block (2, D) float: minima, then maxima
/// source      Quest (Tang et al. 2024), section 3.2
struct page_bounds {
  static constexpr std::array<kvx::column, 1> columns(kvx::page_shape shape) {
    return {kvx::column{.block_bytes = std::int64_t{2} * shape.key_dim * static_cast<std::int64_t>(sizeof(float))}};
  }
};
static_assert(kvx::index_policy<page_bounds>);

/// Called by the cache when a page enters the retrieval zone, once for each KV head.
template <class E>
void encode_page(const kvx::host&, const page_bounds&, const kvx::row_view<const E>& rows, std::int64_t page, int head,
                 const std::array<std::byte*, 1>& blocks) {
  float* const low = reinterpret_cast<float*>(blocks[0]);                                          // low, high (D)
  float* const high = low + rows.key_dim;
  std::fill(low, high, std::numeric_limits<float>::infinity());
  std::fill(high, high + rows.key_dim, -std::numeric_limits<float>::infinity());
  for (int slot = 0; slot < rows.page_tokens; ++slot) {
    const E* key = rows.key.at(page, head, slot);                                                  // key (D)
    for (int d = 0; d < rows.key_dim; ++d) {
      low[d] = std::min(low[d], kvx::to_float(key[d]));
      high[d] = std::max(high[d], kvx::to_float(key[d]));
    }
  }
}

/// No key of the page has a larger inner product with q (D) than this.
inline float upper_bound(const std::byte* block, std::span<const float> q) {
  const float* const low = reinterpret_cast<const float*>(block);
  const float* const high = low + q.size();
  float sum = 0;
  for (std::size_t d = 0; d < q.size(); ++d) sum += std::max(q[d] * low[d], q[d] * high[d]);
  return sum;
}
