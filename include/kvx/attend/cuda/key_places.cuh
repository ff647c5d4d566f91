#pragma once
// Which keys a block attends to, in which order, and where their rows lie.

#include <kvx/attend/rows.hpp>
#include <kvx/core/annotate.hpp>
#include <kvx/layout/far_rows.hpp>
#include <kvx/layout/row_view.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// Keys one after the other: two ranges of tokens, such as the sink and the recent zone, then ids. A place counts from 0.
struct key_places {
  token_range ranges[2];
  const std::int32_t* ids = nullptr;
  std::int64_t id_count = 0;

  KVX_HD constexpr std::int64_t size() const { return ranges[0].size() + ranges[1].size() + id_count; }

  KVX_HD constexpr std::int64_t token(std::int64_t place) const {
    if (place < ranges[0].size()) return ranges[0].begin + place;
    place -= ranges[0].size();
    if (place < ranges[1].size()) return ranges[1].begin + place;
    return ids[place - ranges[1].size()];
  }
};
static_assert([] {
  const std::int32_t ids[] = {7, 9};
  const key_places places{{{0, 2}, {20, 23}}, ids, 2};
  return places.size() == 7 && places.token(1) == 1 && places.token(4) == 22 && places.token(6) == 9;
}());

/// Rows of one sequence and KV head in the pages of the pool: the one place where a token becomes an address.
///
/// Far         all_near, or far_rows where pages may lie in another memory
template <class E, class Far = all_near>
struct paged_source {
  row_view<const E> rows;
  const std::int32_t* pages = nullptr;
  std::int64_t head = 0;
  Far far = {};

  __device__ row_address<E> at(const key_places& places, std::int64_t place) const {
    const std::int64_t token = places.token(place);
    const int shift = __ffs(rows.page_tokens) - 1;
    return far.row(rows, pages[token >> shift], head, token & (rows.page_tokens - 1));
  }
};

/// What a block takes the rows of a unit from. Whatever else knows where they lie has an overload that gives another type with `at`.
template <class E, class Far>
__device__ paged_source<E, Far> source_of(const Far& far, const row_view<const E>& rows, const std::int32_t* pages, std::int64_t head,
                                          std::int64_t /*unit*/) {
  return {rows, pages, head, far};
}

}  // namespace kvx
