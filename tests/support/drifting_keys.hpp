#pragma once
// A stream of keys whose distribution drifts, and queries near keys of any age.

#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

namespace kvx::test {

/// Keys of one head, one after the other.
///
/// what        key = mean + deviation_d normal, norm about 20. The mean is a random walk that forgets (after 2,000 tokens it is another);
///             the deviations have the spectrum i^-1, and which channel has which moves on by one channel every 80 tokens, so that after
///             10,000 tokens no channel is what it was
/// shapes      next(), query(k): (dim)
class drifting_keys {
 public:
  drifting_keys(int dim, unsigned seed) : random_(seed), mean_(static_cast<std::size_t>(dim)) {
    float sum = 0;
    for (int d = 0; d < dim; ++d) sum += 1 / static_cast<float>(d + 1);
    for (int d = 0; d < dim; ++d) deviations_.push_back(20 / std::sqrt(sum * static_cast<float>(d + 1)));
    for (float& m : mean_) m = 20 / std::sqrt(static_cast<float>(dim)) * normal_(random_);
  }

  std::vector<float> next() {
    const std::size_t moved = tokens_++ / 80;
    const auto root = std::sqrt(static_cast<float>(mean_.size()));
    std::vector<float> key;
    for (std::size_t d = 0; d < mean_.size(); ++d) {
      mean_[d] = 0.9995f * mean_[d] + 0.0316f * 20 / root * normal_(random_);
      key.push_back(mean_[d] + deviations_[(d + moved) % mean_.size()] * normal_(random_));
    }
    return key;
  }

  /// Half of the key plus noise: its inner products single the key out.
  std::vector<float> query(const std::vector<float>& key) {
    std::vector<float> q;
    for (const float k : key) q.push_back(0.5f * k + 0.3f * normal_(random_));
    return q;
  }

 private:
  std::mt19937 random_;
  std::normal_distribution<float> normal_;
  std::size_t tokens_ = 0;
  std::vector<float> mean_;
  std::vector<float> deviations_;
};

}  // namespace kvx::test
