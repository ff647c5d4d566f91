#pragma once
// Pages that hold the most candidates, on the host.

#include <kvx/backend/host.hpp>
#include <kvx/core/math.hpp>
#include <kvx/index/host/scan_buckets.hpp>
#include <kvx/rerank/fullest_pages.hpp>
#include <kvx/sketch/host/top_k.hpp>
#include <kvx/sketch/key_norm.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvx {

constexpr std::int64_t rerank_scratch(const host&, const fullest_pages&, int, std::int64_t) { return 0; }

/// Tokens of the pages of a zone that hold the most candidates, ascending; those outside of the zone and those never found are left out.
///
/// shapes      candidates (C), ascending; counts (pages of the zone); pages (keep / P); ids: room for the tokens of those pages
/// returns     how many
/// exactness   exact
inline std::int64_t tokens_of_fullest(const host& exec, const bucket_zone& z, std::span<const std::int32_t> candidates, std::int64_t keep,
                                      std::span<float> counts, std::int32_t* pages, std::int32_t* ids) {
  const std::int64_t P = z.page.tokens, first = z.first_page(), wanted = std::min(keep / P, z.last_page() - first);
  std::fill(counts.begin(), counts.end(), quiet_nan);
  for (const std::int32_t t : candidates) {
    float& count = counts[static_cast<std::size_t>(t / P - first)];
    count = is_nan(count) ? 1 : count + 1;
  }
  const std::int64_t taken = top_k<std::int32_t>(exec, counts, wanted, {pages, static_cast<std::size_t>(wanted)}).taken;
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < taken; ++i) {
    const std::int64_t page = first + pages[i];
    const std::byte* const norms = z.columns[column_norms].data != nullptr ? z.block(column_norms, page) : nullptr;
    for (std::int64_t slot = 0; slot < P; ++slot) {
      const std::int64_t t = page * P + slot;
      const bool lost = norms != nullptr && static_cast<std::uint8_t>(norms[slot]) == never_found;
      if (t >= z.begin && t < z.end && !lost) ids[found++] = static_cast<std::int32_t>(t);
    }
  }
  return found;
}

}  // namespace kvx
