#pragma once
// The arithmetic of one channel of a balance, the same text for every runner.

#include <kvx/core/annotate.hpp>
#include <kvx/core/rounded.hpp>

#include <cmath>
#include <cstdint>

namespace kvx {

/// Variance of a channel from the sums of n numbers and of their squares, and at least 0.
KVX_HD constexpr double channel_variance(double sum, double squares, std::int64_t n) {
  const auto count = static_cast<double>(n);
  const double mean = sum / count;
  const double variance = squares / count - rounded_product(mean, mean);
  return variance < 0.0 ? 0.0 : variance;
}
static_assert(channel_variance(6, 20, 2) == 1 && channel_variance(2, 2, 2) == 0);

/// Mean of what two channels share, and at least `least`.
KVX_HD constexpr double shared_moment(double of, double of_partner, double least) {
  const double mean = (of + of_partner) / 2;
  return mean < least ? least : mean;
}

/// Below this share of the mean over channels a variance or an energy counts as so much.
inline constexpr double least_moment_share = 1e-6;

/// (energy / variance)^(1/4): square roots are rounded to the last bit everywhere.
KVX_HD inline float channel_balance(double energy, double variance) { return static_cast<float>(sqrt(sqrt(energy / variance))); }

}  // namespace kvx
