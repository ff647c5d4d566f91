#pragma once
// The attention of one head at one query position: where its mass lies.

#include "head_rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace quality {

/// The softmax of one head over all that it sees.
class attention {
 public:
  explicit attention(std::span<const float> logits) : logits_(logits), most_(*std::max_element(logits.begin(), logits.end())) {
    for (const float x : logits) whole_ += weight(x);
  }
  double mass(std::int64_t token) const { return weight(logits_[static_cast<std::size_t>(token)]) / whole_; }

  /// Log-sum-exp of what is attended anyway.
  float resident(const searched& zone) const {
    double sum = 0;
    for (std::int64_t t = 0; t < static_cast<std::int64_t>(logits_.size()); ++t) {
      if (t < zone.begin || t >= zone.end) sum += weight(logits_[static_cast<std::size_t>(t)]);
    }
    return static_cast<float>(static_cast<double>(most_) + std::log(sum));
  }

 private:
  double weight(float logit) const { return std::exp(static_cast<double>(logit) - static_cast<double>(most_)); }

  std::span<const float> logits_;
  float most_;
  double whole_ = 0;
};

}  // namespace quality
