#include "forward_pass.hpp"

#include "matrix.hpp"
#include "shares.hpp"

#include <kvx/core/check.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace decode_loop {
namespace {

std::int64_t signed_size(std::size_t n) { return static_cast<std::int64_t>(n); }

/// Mean of squares of x (n), in 16 sums side by side, so that a compiler may use its vectors.
float mean_square(const float* x, std::size_t n) {
  float sums[16] = {};
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (std::size_t lane = 0; lane < 16; ++lane) sums[lane] += x[i + lane] * x[i + lane];
  }
  for (; i < n; ++i) sums[0] += x[i] * x[i];
  float sum = 0;
  for (const float s : sums) sum += s;
  return sum / static_cast<float>(n);
}

void add_bias(std::vector<float>& x, std::size_t tokens, const std::vector<float>& bias) {
  for (std::size_t i = 0; i < tokens * bias.size(); ++i) x[i] += bias[i % bias.size()];
}

}  // namespace

forward_pass::forward_pass(const model& weights, const kvx::host& exec, std::size_t most_tokens)
    : model_(weights), exec_(exec), most_tokens_(most_tokens) {
  const model_shape& s = weights.shape;
  x_.resize(most_tokens * s.embedding);
  normal_.resize(most_tokens * s.embedding);
  q_.resize(most_tokens * s.query_heads * s.head_dim);
  out_.resize(q_.size());
  k_.resize(most_tokens * s.kv_heads * s.head_dim);
  v_.resize(k_.size());
  gate_.resize(most_tokens * s.feed_forward);
  up_.resize(gate_.size());
}

void forward_pass::embed(std::span<const token_id> ids, std::int64_t position) {
  positions_.resize(ids.size());
  std::iota(positions_.begin(), positions_.end(), position);
  embed(ids, positions_);
}

void forward_pass::embed(std::span<const token_id> ids, std::span<const std::int64_t> positions) {
  const auto here = kvx::call_site::here();
  const model_shape& s = model_.shape;
  kvx::require_range("tokens of a pass", signed_size(ids.size()), 1, signed_size(most_tokens_), here);
  kvx::require_range("positions of a pass", signed_size(positions.size()), signed_size(ids.size()), signed_size(ids.size()), here);
  tokens_ = ids.size();
  for (std::size_t t = 0; t < tokens_; ++t) {
    kvx::require_range("token", ids[t], 0, signed_size(s.vocabulary) - 1, here);
    std::copy_n(model_.embedding.data() + static_cast<std::size_t>(ids[t]) * s.embedding, s.embedding, x_.data() + t * s.embedding);
  }
  rope_.fill(positions, s.head_dim, s.rope_base);
}

void forward_pass::normalise(const std::vector<float>& weight, std::size_t first_token) {
  const std::size_t width = model_.shape.embedding;
  for_each_share(exec_, signed_size(tokens_ - first_token), [&](std::int64_t first, std::int64_t last) {
    for (std::size_t t = first_token + static_cast<std::size_t>(first); t < first_token + static_cast<std::size_t>(last); ++t) {
      const float* x = x_.data() + t * width;                           // x, y (E)
      float* y = normal_.data() + t * width;
      const float scale = 1 / std::sqrt(mean_square(x, width) + model_.shape.epsilon);
      for (std::size_t i = 0; i < width; ++i) y[i] = x[i] * scale * weight[i];
    }
  });
}

layer_rows forward_pass::project(std::size_t layer, bool keep_k0) {
  const model_shape& s = model_.shape;
  const model_layer& w = model_.layers[layer];
  const auto n = signed_size(tokens_);
  const auto width = signed_size(s.embedding);
  const std::size_t queries = s.query_heads * s.head_dim;
  const std::size_t keys = s.kv_heads * s.head_dim;

  normalise(w.attention_norm, 0);
  multiply(exec_, normal_.data(), n, w.query.data(), width, signed_size(queries), q_.data(), false);
  multiply(exec_, normal_.data(), n, w.key.data(), width, signed_size(keys), k_.data(), false);
  multiply(exec_, normal_.data(), n, w.value.data(), width, signed_size(keys), v_.data(), false);
  add_bias(q_, tokens_, w.query_bias);
  add_bias(k_, tokens_, w.key_bias);
  add_bias(v_, tokens_, w.value_bias);

  if (keep_k0) k0_.assign(k_.begin(), k_.begin() + n * signed_size(keys));
  for_each_share(exec_, n, [&](std::int64_t first, std::int64_t last) {
    for (auto t = static_cast<std::size_t>(first); t < static_cast<std::size_t>(last); ++t) {
      for (std::size_t h = 0; h < s.query_heads; ++h) rope_.turn(q_.data() + t * queries + h * s.head_dim, t, s.pairs);
      for (std::size_t h = 0; h < s.kv_heads; ++h) rope_.turn(k_.data() + t * keys + h * s.head_dim, t, s.pairs);
    }
  });

  const std::span<const float> k0 = keep_k0 ? std::span<const float>(k0_) : std::span<const float>();
  return {{q_.data(), tokens_ * queries}, {k_.data(), tokens_ * keys}, {v_.data(), tokens_ * keys}, k0, {out_.data(), tokens_ * queries}};
}

void forward_pass::mix(std::size_t layer) {
  const model_shape& s = model_.shape;
  const model_layer& w = model_.layers[layer];
  const auto n = signed_size(tokens_);
  const auto width = signed_size(s.embedding);
  const auto inner = signed_size(s.feed_forward);

  multiply(exec_, out_.data(), n, w.output.data(), signed_size(s.query_heads * s.head_dim), width, x_.data(), true);
  normalise(w.feed_norm, 0);
  multiply(exec_, normal_.data(), n, w.gate.data(), width, inner, gate_.data(), false);
  multiply(exec_, normal_.data(), n, w.up.data(), width, inner, up_.data(), false);
  silu_times(exec_, gate_.data(), up_.data(), n * inner);
  multiply(exec_, gate_.data(), n, w.down.data(), inner, width, x_.data(), true);
}

std::span<const float> forward_pass::logits(std::size_t count) {
  const model_shape& s = model_.shape;
  kvx::require_range("tokens to score", signed_size(count), 0, signed_size(tokens_), kvx::call_site::here());
  if (count == 0) return {};
  logits_.resize(std::max(logits_.size(), count * s.vocabulary));
  normalise(model_.output_norm, tokens_ - count);
  const float* last = normal_.data() + (tokens_ - count) * s.embedding;
  multiply(exec_, last, signed_size(count), model_.output().data(), signed_size(s.embedding), signed_size(s.vocabulary), logits_.data(),
           false);
  return {logits_.data(), count * s.vocabulary};
}

}  // namespace decode_loop
