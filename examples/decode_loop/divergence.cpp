#include "divergence.hpp"

#include "sampler.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace decode_loop {

std::vector<double> log_probabilities(std::span<const float> logits) {
  const double highest = static_cast<double>(logits[static_cast<std::size_t>(most_likely(logits))]);
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - highest);
  const double lse = highest + std::log(sum);
  std::vector<double> result(logits.size());
  std::transform(logits.begin(), logits.end(), result.begin(), [lse](float x) { return static_cast<double>(x) - lse; });
  return result;
}

void divergence::add(std::span<const float> reference, std::span<const float> logits, token_id next) {
  const auto p = log_probabilities(reference);                          // p, q (vocabulary)
  const auto q = log_probabilities(logits);
  double kl = 0;
  for (std::size_t w = 0; w < p.size(); ++w) kl += std::exp(p[w]) * (p[w] - q[w]);
  kl_.push_back(kl);
  agreed_ += most_likely(reference) == most_likely(logits);
  surprise_ -= q[static_cast<std::size_t>(next)];
}

double divergence::kl_mean() const { return std::accumulate(kl_.begin(), kl_.end(), 0.0) / static_cast<double>(kl_.size()); }

double divergence::kl_median() const {
  auto sorted = kl_;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

double divergence::top1() const { return static_cast<double>(agreed_) / static_cast<double>(kl_.size()); }

double divergence::perplexity() const { return std::exp(surprise_ / static_cast<double>(kl_.size())); }

}  // namespace decode_loop
