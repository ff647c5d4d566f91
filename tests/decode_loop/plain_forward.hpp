#pragma once
// The forward pass by its definition: one sequence, all tokens at once, in double, no cache.

#include <model.hpp>
#include <tokenizer.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace decode_loop::test {

using row = std::vector<double>;

inline row product(const std::vector<float>& weights, const row& x, const std::vector<float>& bias = {}) {
  row y(weights.size() / x.size());
  for (std::size_t o = 0; o < y.size(); ++o) {
    y[o] = bias.empty() ? 0 : static_cast<double>(bias[o]);
    for (std::size_t i = 0; i < x.size(); ++i) y[o] += static_cast<double>(weights[o * x.size() + i]) * x[i];
  }
  return y;
}

inline row rms_norm(const row& x, const std::vector<float>& weight, double epsilon) {
  double square = 0;
  for (const double value : x) square += value * value;
  row y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    y[i] = x[i] / std::sqrt(square / static_cast<double>(x.size()) + epsilon) * static_cast<double>(weight[i]);
  return y;
}

/// Turns each head of x; dimension pairs (2i, 2i + 1) or (i, i + D/2).
inline void rotate(row& x, std::size_t position, const model_shape& s) {
  const std::size_t D = s.head_dim;
  for (std::size_t head = 0; head < x.size() / D; ++head) {
    for (std::size_t i = 0; i < D / 2; ++i) {
      const bool split = s.pairs == rope_pairs::half_split;
      double& a = x[head * D + (split ? i : 2 * i)];
      double& b = x[head * D + (split ? i + D / 2 : 2 * i + 1)];
      const double angle = static_cast<double>(position) / std::pow(s.rope_base, 2 * static_cast<double>(i) / static_cast<double>(D));
      const double turned = a * std::cos(angle) - b * std::sin(angle);
      b = a * std::sin(angle) + b * std::cos(angle);
      a = turned;
    }
  }
}

/// Logits of every token.   (tokens, vocabulary)
inline std::vector<row> plain_forward(const model& m, const std::vector<token_id>& ids) {
  const model_shape& s = m.shape;
  const std::size_t D = s.head_dim;
  const double epsilon = static_cast<double>(s.epsilon);
  std::vector<row> x;
  for (const token_id id : ids) {
    const auto first = m.embedding.begin() + id * static_cast<std::ptrdiff_t>(s.embedding);
    x.emplace_back(first, first + static_cast<std::ptrdiff_t>(s.embedding));
  }
  for (const model_layer& w : m.layers) {
    std::vector<row> keys, values;
    for (std::size_t t = 0; t < x.size(); ++t) {
      const row h = rms_norm(x[t], w.attention_norm, epsilon);
      row q = product(w.query, h, w.query_bias);
      keys.push_back(product(w.key, h, w.key_bias));
      values.push_back(product(w.value, h, w.value_bias));
      rotate(q, t, s);
      rotate(keys.back(), t, s);

      row out(q.size(), 0.0);
      for (std::size_t head = 0; head < s.query_heads; ++head) {
        const std::size_t kv = head / (s.query_heads / s.kv_heads);
        row weight(t + 1);
        double sum = 0;
        for (std::size_t j = 0; j <= t; ++j) {
          double dot = 0;
          for (std::size_t d = 0; d < D; ++d) dot += q[head * D + d] * keys[j][kv * D + d];
          weight[j] = std::exp(dot / std::sqrt(static_cast<double>(D)));
          sum += weight[j];
        }
        for (std::size_t j = 0; j <= t; ++j) {
          for (std::size_t d = 0; d < D; ++d) out[head * D + d] += weight[j] / sum * values[j][kv * D + d];
        }
      }
      const row mixed = product(w.output, out);
      for (std::size_t i = 0; i < mixed.size(); ++i) x[t][i] += mixed[i];

      const row f = rms_norm(x[t], w.feed_norm, epsilon);
      row gate = product(w.gate, f);
      const row up = product(w.up, f);
      for (std::size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
      const row down = product(w.down, gate);
      for (std::size_t i = 0; i < down.size(); ++i) x[t][i] += down[i];
    }
  }
  std::vector<row> logits;
  for (const row& token : x) logits.push_back(product(m.output(), rms_norm(token, m.output_norm, epsilon)));
  return logits;
}

}  // namespace decode_loop::test
