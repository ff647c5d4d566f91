#pragma once
// The index that proposes every token: no columns, and attention stays dense.

#include <kvx/layout/columns.hpp>
#include <kvx/layout/page_shape.hpp>

#include <array>

namespace kvx {

/// What an index must tell a cache: the columns that it keeps for a shape of page. A cache then calls, when page `p` of a retrieving
/// layer enters the retrieval zone, once for each KV head,
///
///     encode_page(exec, index, rows, p, head, columns)    // rows row_view<const E>, columns std::array<std::byte*, n>
///
/// found beside the policy, which must not throw and must depend on the page's rows alone: forks share what it writes.
template <class I>
concept index_policy = requires(page_shape shape) {
  { I::columns(shape).size() };
};

/// Keeps nothing and finds everything.
struct full_scan {
  static constexpr std::array<column, 0> columns(page_shape) { return {}; }
};
static_assert(index_policy<full_scan>);

}  // namespace kvx
