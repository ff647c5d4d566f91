#pragma once
// Where the features of a span lie: K or V rows of some layers and heads, in pages or in a matrix, and how keys are turned.

#include <kvx/core/annotate.hpp>
#include <kvx/core/element.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/transform/cuda/turns.cuh>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// Rows of consecutive tokens of one sequence; trivially copyable, all pointers the device's.
///
/// layers      K, or V, of every layer of the span in its order
/// first_head, heads, dim   which heads of each layer, and the width of their rows: feature f is layer f / (heads dim), and so on
/// pages       physical page of every page of the sequence; null: page p is page p
/// first       position of token 0; all positions are below 2^31
/// far         the same layers of rows that lie far, where pages from near_pages on are theirs; null: none
template <class E>
struct span_rows {
  const row_array<E>* layers = nullptr;
  std::int32_t first_head = 0;
  std::int32_t heads = 0;
  std::int32_t dim = 0;
  const std::int32_t* pages = nullptr;
  std::int32_t page_tokens = 1;
  std::int64_t first = 0;
  const row_array<E>* far = nullptr;
  std::int64_t near_pages = 0;

  /// The row of a head of the span, heads of all layers counted through.
  KVX_HD constexpr E* row(std::int64_t t, std::int32_t head) const {
    const auto position = static_cast<std::uint32_t>(first + t), tokens = static_cast<std::uint32_t>(page_tokens);  // cheap divisions
    const std::uint32_t page = position / tokens;
    const std::int64_t at = pages != nullptr ? pages[page] : std::int64_t{page};
    if (far != nullptr && at >= near_pages) return far[head / heads].at(at - near_pages, first_head + head % heads, position % tokens);
    return layers[head / heads].at(at, first_head + head % heads, position % tokens);
  }
};

/// A matrix (tokens, features) as the one layer of such rows, to be brought to device memory: page_tokens is 1, pages null.
template <class E>
constexpr row_array<E> matrix_rows(E* data, std::int64_t token_stride, std::int64_t dim) {
  return {data, token_stride, dim, 0};
}

/// How the keys of a span are turned, for every head of all its layers; null: not at all.
struct device_span_turns {
  const device_turns* heads = nullptr;

  __device__ __forceinline__ device_turns of(std::int32_t head) const { return heads != nullptr ? heads[head] : device_turns{}; }
};

}  // namespace kvx
