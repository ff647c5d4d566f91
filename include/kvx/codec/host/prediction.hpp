#pragma once
// What ids of tokens foretell of rows, on the host: inputs of the predictor from embeddings, and the products that rows differ by.

#include <kvx/backend/host.hpp>
#include <kvx/backend/simd/convert.hpp>
#include <kvx/codec/chain.hpp>
#include <kvx/codec/token_predictor.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/transform/matrix_product.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace kvx {

/// Normed embeddings of tokens and of those before them, times the predictor's inputs.
///
/// shapes      embeddings (n + 1, E) as the model holds them, from the token before the first one on; `first` true: there is none before,
///             and its place is not read. Result (n, rank)
/// cost        4 n E rank operations
inline std::vector<float> predictor_inputs(const host& exec, const matrix_product& product, const token_predictor& predictor,
                                           const float* embeddings, std::int64_t n, bool first) {
  constexpr std::int64_t tokens_per_task = 64;
  const std::int64_t width = predictor.embedding, rank = predictor.rank;
  std::vector<float> map(predictor.inputs.size()), normed(static_cast<std::size_t>((n + 1) * width)),
      z(static_cast<std::size_t>(2 * n * width)), result(static_cast<std::size_t>(n * rank));
  simd::convert_row(map.data(), predictor.inputs.data(), std::ssize(predictor.inputs));
  for_each_task(exec, n + 1, [&](std::int64_t t) {
    normed_embedding(first && t == 0 ? nullptr : embeddings + t * width, width, normed.data() + t * width);
  });
  for_each_task(exec, ceil_div(n, tokens_per_task), [&](std::int64_t task) {
    const std::int64_t from = task * tokens_per_task, count = std::min(tokens_per_task, n - from);
    for (std::int64_t t = from; t < from + count; ++t) {
      const float* const before = normed.data() + t * width;
      std::copy_n(before + width, width, z.data() + 2 * t * width);
      std::copy_n(before, width, z.data() + (2 * t + 1) * width);
    }
    product.run(product.context, {false, false, count, rank, 2 * width}, z.data() + 2 * from * width, 2 * width, map.data(), rank,
                result.data() + from * rank, rank);
  });
  return result;
}

/// rows += sign * inputs outputs, of the features [first, first + rows.extents[1]) of a span of `features`.
///
/// shapes      rows (tokens, count), features dense
/// exactness   float: sums in the order of the product
/// cost        2 tokens rank count operations
inline void add_prediction(const host& exec, const matrix_product& product, const span_prediction& p, std::int64_t features,
                           std::int64_t first, float sign, const tensor_view<float, 2>& rows) {
  constexpr std::int64_t tile = 384;  // a tile of the outputs as floats stays near
  const std::int64_t tokens = rows.extents[0], count = rows.extents[1];
  if (p.rank == 0 || tokens == 0 || count == 0) return;
  std::vector<float> inputs(p.inputs, p.inputs + tokens * p.rank);
  for (float& x : inputs) x *= sign;
  const std::int64_t tiles = ceil_div(count, tile);
  const memory_block memory = allocate(exec, tiles * p.rank * tile * static_cast<std::int64_t>(sizeof(float)));
  for_each_task(exec, tiles, [&](std::int64_t i) {
    const std::int64_t f = i * tile, width = std::min(tile, count - f);
    float* const outputs = reinterpret_cast<float*>(memory.data()) + i * p.rank * tile;
    for (std::int64_t r = 0; r < p.rank; ++r) simd::convert_row(outputs + r * width, p.outputs + r * features + first + f, width);
    product.run(product.context, {false, true, tokens, width, p.rank}, inputs.data(), p.rank, outputs, width, rows.at(0, f),
                rows.strides[0]);
  });
}

}  // namespace kvx
