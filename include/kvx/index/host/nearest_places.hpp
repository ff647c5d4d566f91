#pragma once
// Of the children of a beam those that composite indices come to first, on the host.

#include <kvx/core/element.hpp>
#include <kvx/core/fixed_dot.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/index/block_keys.hpp>
#include <kvx/index/dci_head.hpp>
#include <kvx/index/dci_tree.hpp>
#include <kvx/index/host/dci_links.hpp>
#include <kvx/index/projections.hpp>

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace kvx {

/// The places of a group's queries, and room to choose by them.
///
/// exactness   places are rounded from sums in double: the same tokens everywhere
class nearest_places {
 public:
  nearest_places(scratch_parts& s, int dim, int heads, std::int64_t tokens)
      : group_(heads),
        dim_(dim),
        asked_(s.take<float>(heads * most_lines)),
        query_(s.take<float>(2 * block_key_pitch(dim))),
        order_(s.take<std::int32_t>(tokens)),
        taken_(s.take<std::int32_t>(tokens)) {}

  void prepare(const dci_shape& shape, tensor_view<const float, 2> queries) const {
    const std::int64_t pitch = block_key_pitch(dim_);
    float* const line = query_ + pitch;
    std::fill_n(query_, 2 * pitch, 0.0f);
    for (int i = 0; i < lines_of(shape); ++i) {
      for (int d = 0; d < dim_; ++d) line[d] = line_component(shape.seed, i, d);
      for (int g = 0; g < group_; ++g) {
        for (int d = 0; d < dim_; ++d) query_[d] = *queries.at(g, d);
        asked_[g * most_lines + i] =
            place_of_query(fixed_dot(query_, line, dim_), fixed_dot(query_, query_, dim_), host_links::square_root);
      }
    }
  }

  /// Leaves of `count` tokens those that one of the composite indices has among its `nearest` ones; equal ones by position. Returns how
  /// many.
  ///
  /// shapes      ids, priorities (count)
  template <class E>
  std::int64_t of(const dci_shape& shape, const dci_head<E>& head, std::int64_t nearest, std::int32_t* ids, std::int64_t count,
                  float* priorities) const {
    if (nearest >= count) return count;
    const std::int64_t P = head.rows.page_tokens;
    const int lines = lines_of(shape), m = shape.simple;
    std::fill_n(taken_, count, 0);
    for (int i = 0; i < shape.composite; ++i) {
      for (std::int64_t t = 0; t < count; ++t)
        priorities[t] = priority_of(head.places_of(ids[t] / P, ids[t] % P, lines) + i * m, m, asked_ + i * m, most_lines, group_);
      std::iota(order_, order_ + count, 0);
      std::nth_element(order_, order_ + nearest, order_ + count, [&](std::int32_t a, std::int32_t b) {
        return priorities[a] != priorities[b] ? priorities[a] < priorities[b] : ids[a] < ids[b];
      });
      for (std::int64_t t = 0; t < nearest; ++t) taken_[order_[t]] = 1;
    }
    std::int64_t left = 0;
    for (std::int64_t t = 0; t < count; ++t) {
      if (taken_[t] != 0) ids[left++] = ids[t];
    }
    return left;
  }

 private:
  int group_, dim_;
  float* asked_;         // (G, most_lines)
  float* query_;         // (2, pitch) a query and a line
  std::int32_t* order_;  // (tokens)
  std::int32_t* taken_;  // (tokens)
};

}  // namespace kvx
