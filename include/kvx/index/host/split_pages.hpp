#pragma once
// The tokens of a tree put into pages that grow by splits, on the host.

#include <kvx/backend/host.hpp>
#include <kvx/backend/simd/dispatch.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/fixed_dot.hpp>
#include <kvx/core/math.hpp>
#include <kvx/index/bisection.hpp>
#include <kvx/index/block_keys.hpp>
#include <kvx/index/dci_head.hpp>
#include <kvx/index/dci_tree.hpp>
#include <kvx/index/split_pages.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvx {

/// Takes the tokens up to `tokens` into pages, a page of tokens at a time, each into the cell of its parent by its place along one random
/// direction.
///
/// shape       what the links were made with: blocks of one page, so that a parent comes before the end of its child's page of the text
/// tokens      whole pages, whose links are there; those before pages.tokens() are not looked at again
/// exactness   the same pages for any pieces, everywhere: values are rounded from sums in double
/// errors      usage_error: another block than a page, no links, fewer tokens than are held or no whole pages
template <element E>
void grow(const host&, const dci_shape& shape, const dci_head<E>& of, std::int64_t tokens, split_pages& pages,
          call_site where = call_site::here()) {
  const std::int64_t P = of.rows.page_tokens;
  require(shape.block == P && keeps_links(shape), "grow: the index must have links, and blocks of one page", where);
  require_range("grow: tokens", tokens, pages.tokens(), INT32_MAX, where);
  require(tokens % P == 0, "grow: tokens must be whole pages", where);
  const int D = of.rows.key_dim;
  const auto pitch = static_cast<std::size_t>(block_key_pitch(D));
  std::vector<float> direction(pitch), key(pitch), values;
  std::vector<std::int32_t> cells;
  for (int d = 0; d < D; ++d) direction[static_cast<std::size_t>(d)] = first_direction(shape.seed, d);
  for (std::int64_t t = pages.tokens(); t < tokens; ++t) {
    cells.push_back(of.links_of(t / P)[t % P]);
    simd::kernels().conversions<E>().to_floats(of.key(t), D, key.data());
    const auto value = static_cast<float>(fixed_dot(key.data(), direction.data(), D));
    values.push_back(cells.back() == not_in_tree ? quiet_nan : value);
  }
  pages.insert(cells, values, where);
}

}  // namespace kvx
