#pragma once
// Choosing the next token from its logits.

#include "tokenizer.hpp"

#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace decode_loop {

/// The token of the largest logit; the lowest id of equals, and NaN never.
inline token_id most_likely(std::span<const float> logits) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < logits.size(); ++i) {
    if (logits[i] > logits[best] || std::isnan(logits[best])) best = i;
  }
  return static_cast<token_id>(best);
}

/// Draws from softmax(logits / temperature_); temperature 0 is `most_likely`.
///
/// exactness   in double and in the order of ids: the same seed gives the same tokens on every machine whose logits agree
class sampler {
 public:
  explicit sampler(double temperature = 0, std::uint64_t seed = 0) : temperature_(temperature), random_(seed) {}

  token_id operator()(std::span<const float> logits) {
    const token_id best = most_likely(logits);
    if (!(temperature_ > 0)) return best;
    const double highest = static_cast<double>(logits[static_cast<std::size_t>(best)]);
    weights_.resize(logits.size());
    double sum = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const double weight = std::exp((static_cast<double>(logits[i]) - highest) / temperature_);
      weights_[i] = weight > 0 ? weight : 0;                            // a NaN logit is never drawn
      sum += weights_[i];
    }
    double left = static_cast<double>(random_() >> 11) * 0x1p-53 * sum;  // [0, sum)
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      left -= weights_[i];
      if (left < 0) return static_cast<token_id>(i);
    }
    return best;                                                        // rounding left a remainder
  }

 private:
  double temperature_;
  std::mt19937_64 random_;
  std::vector<double> weights_;
};

}  // namespace decode_loop
