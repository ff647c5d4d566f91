#pragma once
// Keys that lie like those of a model that reads a text, and the queries that look for them.

#include "world.hpp"

#include <kvx/core/element.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvx::bench {

// A key is  mean + s (.4 near + .8 topic + .7 kind + .3 own)  by channel: near drifts with a memory of 10 tokens, as phrases do; topic with
// one of 150; kind is what all tokens of one of 128 kinds share, the n-th being 1 / n as frequent as the first; own is the token's alone.
// s_d falls as d^-0.35. Queries are normal with the channels of s, heads of a group sharing .6 of their variance, and as long as it takes
// for logits to deviate by 4.2 nats. The weights were chosen beside a trace: docs/icecache.md has both in one table.

struct text_numbers {
  static constexpr float near = .4f, topic = .8f, kind = .7f, own = .3f, mean = 1.5f, falls = .35f, deviation = 4.2f, shared = .6f;
  static constexpr float near_tokens = 10, topic_tokens = 150;
  static constexpr int kinds = 128, topic_step = 16;

  /// s, of mean square 1.   (D)
  static std::vector<float> channels(int dim) {
    std::vector<float> s;
    float squares = 0;
    for (int d = 0; d < dim; ++d) {
      s.push_back(std::pow(static_cast<float>(d + 1), -falls));
      squares += s.back() * s.back();
    }
    for (float& x : s) x /= std::sqrt(squares / static_cast<float>(dim));
    return s;
  }
};

/// The keys and values of one KV head, token by token; values are normal.
class text_stream {
 public:
  text_stream(int head, int dim)
      : normal_{static_cast<std::uint64_t>(head) + 1}, dim_(static_cast<std::size_t>(dim)), channels_(text_numbers::channels(dim)) {
    for (auto* const part : {&mean_, &near_, &topic_}) {
      for (int d = 0; d < dim; ++d) part->push_back(normal_());
    }
    kinds_.resize(text_numbers::kinds * dim_);
    for (float& x : kinds_) x = normal_();
  }

  template <class E>
  void next(E* k, E* v) {
    using n = text_numbers;
    const bool turn = token_++ % n::topic_step == 0;
    const float* const kind = kinds_.data() + kind_of(normal_.state) * dim_;
    for (std::size_t d = 0; d < dim_; ++d) {
      drift(near_[d], 1 / n::near_tokens);
      if (turn) drift(topic_[d], static_cast<float>(n::topic_step) / n::topic_tokens);
      const float x = n::near * near_[d] + n::topic * topic_[d] + n::kind * kind[d] + n::own * normal_();
      k[d] = round_to<E>(n::mean * mean_[d] + channels_[d] * x);
      v[d] = round_to<E>(normal_());
    }
  }

 private:
  /// One step of what forgets at a rate.
  void drift(float& x, float rate) {
    const float kept = std::exp(-rate);
    x = kept * x + std::sqrt(1 - kept * kept) * normal_();
  }

  /// floor(kinds^u) - 1, u uniform.
  static std::size_t kind_of(std::uint64_t state) {
    const float u = static_cast<float>((state ^ state >> 29) >> 40) * 0x1p-24f;
    const auto n = static_cast<int>(std::pow(static_cast<float>(text_numbers::kinds), u));
    return static_cast<std::size_t>(std::clamp(n, 1, text_numbers::kinds) - 1);
  }

  fast_normal normal_;
  std::size_t dim_;
  std::vector<float> channels_, mean_, near_, topic_, kinds_;
  std::int64_t token_ = 0;
};

/// Queries of one token: (heads * group, dim) floats.
inline std::vector<float> text_queries(int heads, int group, int dim, std::uint64_t seed) {
  using n = text_numbers;
  const std::vector<float> s = n::channels(dim);
  float fourth = 0;
  for (const float x : s) fourth += x * x * x * x;
  const float variance = n::near * n::near + n::topic * n::topic + n::kind * n::kind + n::own * n::own;
  const float length = n::deviation * std::sqrt(static_cast<float>(dim) / (variance * fourth));
  fast_normal normal{seed * 2654435761u + 77};
  std::vector<float> q, common(s.size());
  for (int h = 0; h < heads; ++h) {
    for (float& x : common) x = std::sqrt(n::shared) * normal();
    for (int g = 0; g < group; ++g) {
      for (std::size_t d = 0; d < s.size(); ++d) q.push_back(length * s[d] * (common[d] + std::sqrt(1 - n::shared) * normal()));
    }
  }
  return q;
}

}  // namespace kvx::bench
