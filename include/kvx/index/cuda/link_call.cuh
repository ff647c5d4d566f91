#pragma once
// What the kernels that link tokens to their parents are told, and what they leave for each other.

#include <kvx/backend/cuda/fixed_dot.cuh>
#include <kvx/core/element.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/index/cuda/block_to_index.cuh>
#include <kvx/index/dci_links.hpp>
#include <kvx/index/dci_tree.hpp>
#include <kvx/index/page_values.hpp>
#include <kvx/index/promoted_tokens.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/layout/row_view.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// What linking leaves for its own launches.
///
/// largest     (blocks, heads) square norm of the longest key of each block that can be found
/// squares     (runs, heads, promoted) square norms of the promoted keys, -1 of those that are not in the tree
struct link_arrays {
  double* largest = nullptr;
  double* squares = nullptr;

  link_arrays() = default;
  link_arrays(scratch_parts& memory, std::int64_t blocks, std::int64_t runs, std::int64_t heads, const promoted_tokens& promoted)
      : largest(memory.take<double>(blocks * heads)), squares(memory.take<double>(runs * heads * promoted.count())) {}
};

/// What the kernels are told.
///
/// finite_values   see dci_head
template <class E>
struct link_call {
  dci_shape shape;
  row_view<const E> rows;
  column_array members;
  column_array links;
  std::int64_t sink = 0;
  bool finite_values = false;
  promoted_tokens promoted;
  const block_to_index* blocks = nullptr;  // (blocks)
  const run_to_link* runs = nullptr;       // (runs)
  link_arrays to;
  bool wide = false;  ///< keys begin on multiples of 16 bytes

  __device__ const E* key(const std::int32_t* pages, std::int64_t head, std::int64_t token) const {
    return rows.key.at(pages[token / rows.page_tokens], head, token % rows.page_tokens);
  }
  __device__ bool has_value(const std::int32_t* pages, std::int64_t head, std::int64_t token) const {
    return !finite_values ||
           can_be_averaged(square_value(rows.value.at(pages[token / rows.page_tokens], head, token % rows.page_tokens), rows.value_dim));
  }
  __device__ std::int32_t& link(const std::int32_t* pages, std::int64_t head, std::int64_t token) const {
    return reinterpret_cast<std::int32_t*>(links.at(pages[token / rows.page_tokens], head))[token % rows.page_tokens];
  }
};

/// The square norm of a key, by eight lanes; -1 of one that is not in the tree: a sink, or one that can't be found or
/// whose value can't be averaged.
template <class E>
__device__ __forceinline__ double square_in_tree(const link_call<E>& call, const std::int32_t* pages, std::int64_t head,
                                                 std::int64_t token) {
  const E* const row = call.key(pages, head, token);
  const auto x = [&](int d) { return to_float(row[d]); };
  const double square = fixed_dot_of_lanes(x, x, call.rows.key_dim);
  return token >= call.sink && can_be_found(square) && call.has_value(pages, head, token) ? square : -1;
}

}  // namespace kvx
