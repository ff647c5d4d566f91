#pragma once
// An index policy with one column: a checksum of the page's rows, which shows whether columns follow every operation.

#include <kvx/backend/host.hpp>
#include <kvx/index/full_scan.hpp>
#include <kvx/layout/row_view.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvx::test {

struct checksum_index {
  static constexpr std::array<column, 1> columns(page_shape) { return {column{.block_bytes = sizeof(std::uint64_t)}}; }
};
static_assert(index_policy<checksum_index>);

/// Every bit of every row of the page counts, and so does its place.
template <class E>
std::uint64_t checksum(const row_view<const E>& rows, std::int64_t page, std::int64_t head) {
  std::uint64_t sum = 1469598103934665603u;
  const auto add = [&](const E* row, int dim) {
    for (int c = 0; c < dim; ++c) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, row + c, sizeof(E));
      sum = (sum ^ bits) * 1099511628211u;
    }
  };
  for (int slot = 0; slot < rows.page_tokens; ++slot) {
    add(rows.key.at(page, head, slot), rows.key_dim);
    add(rows.value.at(page, head, slot), rows.value_dim);
  }
  return sum;
}

template <class E>
void encode_page(const host&, const checksum_index&, row_view<const E> rows, std::int32_t page, int head,
                 std::array<std::byte*, 1> blocks) {
  const std::uint64_t sum = checksum(rows, page, head);
  std::memcpy(blocks[0], &sum, sizeof(sum));
}

}  // namespace kvx::test
