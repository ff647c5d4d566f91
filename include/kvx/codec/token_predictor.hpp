#pragma once
// What the token ids alone tell about the rows of a token: a linear map from the embeddings of the token and the one before it.

#include <kvx/core/element.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvx {

/// The half that all spans share: prediction of a span = (z inputs) outputs, outputs (rank, F) with the span's basis.
///
/// what        z are the RMS-normed embeddings of tokens t and t - 1, side by side; zeros before the first token
/// shapes      inputs (2 E, rank); rank 0: nothing is predicted
/// source      ours: docs/results.md, stored caches
struct token_predictor {
  std::int64_t embedding = 0;
  std::int64_t rank = 0;
  std::vector<half> inputs;

  bool empty() const { return rank == 0; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(inputs.size() * sizeof(half)); }
  friend bool operator==(const token_predictor&, const token_predictor&) = default;
};

/// Divides an embedding by its root mean square, whatever the model's own norms.
///
/// shapes      embedding, out (E); embedding null: zeros
/// exactness   the sum of squares in double in order, one division; the same everywhere
inline void normed_embedding(const float* embedding, std::int64_t width, float* out) {
  double sum = 0;
  for (std::int64_t i = 0; i < width && embedding != nullptr; ++i)
    sum += static_cast<double>(embedding[i]) * static_cast<double>(embedding[i]);
  const double scale = sum > 0 ? 1 / std::sqrt(sum / static_cast<double>(width)) : 0;
  for (std::int64_t i = 0; i < width; ++i)
    out[i] = embedding == nullptr ? 0 : static_cast<float>(static_cast<double>(embedding[i]) * scale);
}

}  // namespace kvx
