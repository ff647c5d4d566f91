#pragma once
// Rows of one layer whose pages lie in two memories: the near ones in the device's, the others where it reads them from afar.

#include <kvx/core/annotate.hpp>
#include <kvx/layout/row_view.hpp>

#include <cstdint>

namespace kvx {

/// K and V of one token.
template <class E>
struct row_address {
  const E* key = nullptr;
  const E* value = nullptr;
};

/// Every page is near: rows lie where their view says. What kernels that read rows take where nothing was said of far ones.
struct all_near {
  template <class E>
  KVX_HD static constexpr row_address<E> row(const row_view<const E>& near, std::int64_t page, std::int64_t head, std::int64_t slot) {
    return {near.key.at(page, head, slot), near.value.at(page, head, slot)};
  }
};

/// Pages [0, near_pages) are those of the near view; page near_pages + i is page i here, in memory that the device reads in place.
///
/// shapes      as the near view; trivially copyable
template <class E>
struct far_rows {
  row_array<E> key;
  row_array<E> value;
  std::int64_t near_pages = 0;

  KVX_HD constexpr row_address<E> row(const row_view<const E>& near, std::int64_t page, std::int64_t head, std::int64_t slot) const {
    if (page < near_pages) return {near.key.at(page, head, slot), near.value.at(page, head, slot)};
    return {key.at(page - near_pages, head, slot), value.at(page - near_pages, head, slot)};
  }
};
static_assert([] {
  const int near[] = {0, 1, 2, 3};  // pages of one row of two components
  int far[] = {4, 5, 6, 7};
  const row_view<const int> rows{{near, 2, 2, 2}, {near + 1, 2, 2, 2}, 1, 1, 1, 1};
  const far_rows<int> beyond{{far, 2, 2, 2}, {far + 1, 2, 2, 2}, 2};
  return *beyond.row(rows, 1, 0, 0).value == 3 && *beyond.row(rows, 2, 0, 0).key == 4 && *all_near::row(rows, 1, 0, 0).key == 2;
}());

}  // namespace kvx
