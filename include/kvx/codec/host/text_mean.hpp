#pragma once
// What the rows of one text have in common, beside what a calibration knows of all texts and ids foretell of its tokens. Ours:
// docs/storing.md, codecs.

#include <kvx/backend/host.hpp>
#include <kvx/backend/simd/convert.hpp>
#include <kvx/codec/calibrated.hpp>
#include <kvx/codec/host/calibrated.hpp>
#include <kvx/codec/host/chain.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/tensor_view.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvx {

/// Sums over the tokens of some chunks: of the rows, keys turned back, and of the predictor's inputs.
///
/// shapes      rows (F), inputs (rank)
struct text_sums {
  std::vector<double> rows;
  std::vector<double> inputs;
  std::int64_t tokens = 0;

  /// errors      nothing is added of a chunk that holds NaN or infinity: it is stored as rows
  void add(const text_sums& chunk) {
    if (chunk.tokens == 0 || !std::all_of(chunk.rows.begin(), chunk.rows.end(), [](double x) { return std::isfinite(x); })) return;
    rows.resize(chunk.rows.size());
    inputs.resize(chunk.inputs.size());
    for (std::size_t f = 0; f < rows.size(); ++f) rows[f] += chunk.rows[f];
    for (std::size_t r = 0; r < inputs.size(); ++r) inputs[r] += chunk.inputs[r];
    tokens += chunk.tokens;
  }
};

/// Adds up the numbers of tokens, ascending.
///
/// shapes      from (tokens, width); result (width)
inline std::vector<double> sums_over_tokens(const float* from, std::int64_t tokens, std::int64_t width) {
  std::vector<double> sums(static_cast<std::size_t>(width));
  for (std::int64_t t = 0; t < tokens; ++t, from += width) {
    for (std::int64_t i = 0; i < width; ++i) sums[static_cast<std::size_t>(i)] += static_cast<double>(from[i]);
  }
  return sums;
}

/// The sums of the rows of one chunk.
///
/// shapes      rows (chunk.count, features of the span), features dense; result (features)
/// exactness   in double, tokens ascending
/// cost        one read of the rows, one turn of keys
template <element E>
std::vector<double> sum_rows(const host& exec, const calibrated_model& of, const span_chunk& chunk, const tensor_view<const E, 2>& rows,
                             call_site where = call_site::here()) {
  const turns_of_span turns = turns_of(of, chunk);
  const std::int64_t features = rows.extents[1];
  const memory_block memory = allocate(exec, chunk.count * features * static_cast<std::int64_t>(sizeof(float)));
  auto* const floats = reinterpret_cast<float*>(memory.data());
  unturn_rows(exec, rows, turns.view(), tensor_view<float, 2>(floats, chunk.count, features), where);
  return sums_over_tokens(floats, chunk.count, features);
}

/// The sums of what ids foretell a chunk by; nothing without a predictor of the part.
inline std::vector<double> sum_inputs(const calibrated_model& of, const span_chunk& chunk) {
  if (chunk.inputs == nullptr) return {};
  return sums_over_tokens(chunk.inputs, chunk.count, of.predictor(chunk.part).rank);
}

/// The mean of a text's rows less the calibration's and less what is foretold of it, as a frame keeps it.
///
/// what        rows / n - mean - (inputs / n) outputs: prediction is linear, so no row is predicted for it
/// shapes      result (F); zeros without a token
/// exactness   products of two floats summed in double, ranks ascending; halves, within their range
/// cost        F rank operations
inline std::vector<half> text_mean(const calibrated_model& of, std::size_t span, row_part part, const text_sums& sums) {
  constexpr double most = 65504;  // the largest half
  const span_basis& basis = of.basis(span, part);
  const auto features = static_cast<std::size_t>(basis.features());
  std::vector<half> result(features);
  if (sums.tokens == 0) return result;
  const auto n = static_cast<double>(sums.tokens);
  std::vector<double> mean(features);
  for (std::size_t f = 0; f < features; ++f) mean[f] = sums.rows[f] / n - static_cast<double>(basis.mean[f]);
  std::vector<float> outputs(features);
  for (std::size_t r = 0; r < sums.inputs.size(); ++r) {
    const auto input = static_cast<double>(static_cast<float>(sums.inputs[r] / n));
    simd::convert_row(outputs.data(), basis.outputs.data() + r * features, basis.features());
    for (std::size_t f = 0; f < features; ++f) mean[f] -= input * static_cast<double>(outputs[f]);
  }
  for (std::size_t f = 0; f < features; ++f) result[f] = round_to<half>(static_cast<float>(std::clamp(mean[f], -most, most)));
  return result;
}

}  // namespace kvx
