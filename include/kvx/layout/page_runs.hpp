#pragma once
// Pages whose ids follow each other.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvx {

/// Calls f(run) for each part of `ids` in which every id is one more than the one before, of at most `most` ids.
template <class F>
void for_each_run(std::span<const std::int32_t> ids, std::int64_t most, const F& f) {
  for (std::size_t first = 0, end = 0; first < ids.size(); first = end) {
    const std::size_t last = std::min(ids.size(), first + static_cast<std::size_t>(most));
    for (end = first + 1; end < last && ids[end] == ids[end - 1] + 1;) ++end;
    f(ids.subspan(first, end - first));
  }
}

}  // namespace kvx
