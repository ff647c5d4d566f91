#pragma once
// The arithmetic of one channel of a balance, the same text for every runner.

#include <kvx/core/annotate.hpp>
#include <kvx/core/rounded.hpp>

namespace kvx {

/// Variance of a channel from the sums of n numbers and of their squares, and at least 0.
KVX_HD constexpr double channel_variance(double sum, double squares, double n) {
  const double mean = sum / n;
  const double variance = squares / n - rounded_product(mean, mean);
  return variance < 0.0 ? 0.0 : variance;
}
static_assert(channel_variance(6, 20, 2) == 1 && channel_variance(2, 2, 2) == 0);

/// A variance or an energy counts as so much at least: 1e-6 of the mean over channels.
KVX_HD constexpr double least_moment(double sum, int dim) { return 1e-6 * (sum / dim); }

/// Energy over variance of what a channel and its partner share; the balance is the fourth root.
KVX_HD constexpr double balance_ratio(double energy, double partner_energy, double variance, double partner_variance, double least_energy,
                                      double least_variance) {
  const double e = (energy + partner_energy) / 2, v = (variance + partner_variance) / 2;
  return (e < least_energy ? least_energy : e) / (v < least_variance ? least_variance : v);
}
static_assert(balance_ratio(1, 3, 2, 6, .5, .5) == .5 && balance_ratio(0, 0, 0, 0, 1, 4) == .25);

}  // namespace kvx
