#include "text_heads.hpp"

#include "../support/text_stream.hpp"

#include <kvx/core/element.hpp>

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace quality {

std::vector<head_rows> text_heads(int count, std::int64_t tokens, std::span<const std::int64_t> positions) {
  constexpr int dim = 64, group = 3;
  std::vector<head_rows> heads;
  for (int h = 0; h < count; ++h) {
    head_rows& head = heads.emplace_back();
    head.dim = dim;
    head.group = group;
    head.positions.assign(positions.begin(), positions.end());
    kvx::bench::text_stream stream(h, dim);
    kvx::bf16 key[dim], value[dim];
    for (std::int64_t t = 0; t < tokens; ++t) {
      stream.next(key, value);
      std::transform(key, key + dim, std::back_inserter(head.keys), [](kvx::bf16 x) { return kvx::to_float(x); });
      const bool measured = std::binary_search(positions.begin(), positions.end(), t);
      if (t % 8 != 7 && !measured) continue;
      const auto queries = kvx::bench::text_queries(1, group, dim, static_cast<std::uint64_t>(h * tokens + t));
      const auto put = [&](std::vector<float>& to) { to.insert(to.end(), queries.begin(), queries.end()); };
      if (t % 8 == 7) put(head.eighth_queries);
      if (t % 8 == 7 && t >= sink && t < 1024) put(head.early_queries);
      if (measured) put(head.queries);
    }
  }
  return heads;
}

}  // namespace quality
