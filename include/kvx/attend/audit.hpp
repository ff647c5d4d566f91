#pragma once
// What an audit of attention counts: how much of dense attention a method captured, and how far its output is from the dense one.

#include <kvx/core/annotate.hpp>

#include <cstdint>

namespace kvx {

/// Counts over audited calls; calls add to it, so one of these per layer tells the layers apart.
///
/// what        a pair is one query head of one new token. mass = exp(lse - dense lse): the share of dense attention that lies on the rows
///             attended to. error = |out - dense out| / |dense out|
/// unjudged    pairs left out of all sums: something is not finite, or the dense output is zero and the other is not
/// exactness   added in double, pair after pair: the same bits for any number of threads
struct attention_audit {
  std::int64_t tokens = 0;
  std::int64_t pairs = 0;                  ///< judged
  std::int64_t unjudged = 0;
  double mass_sum = 0;
  double error_sum = 0;
  double least_mass = 1;
  double worst_error = 0;

  /// Means over the judged pairs; those of an empty audit are those of dense attention.
  KVX_HD constexpr double mean_mass() const { return pairs > 0 ? mass_sum / static_cast<double>(pairs) : 1; }
  KVX_HD constexpr double mean_error() const { return pairs > 0 ? error_sum / static_cast<double>(pairs) : 0; }

  KVX_HD constexpr void add(double mass, double error) {
    ++pairs;
    mass_sum += mass;
    error_sum += error;
    least_mass = mass < least_mass ? mass : least_mass;
    worst_error = error > worst_error ? error : worst_error;
  }

  friend constexpr bool operator==(const attention_audit&, const attention_audit&) = default;
};
static_assert([] {
  attention_audit audit;
  if (audit.mean_mass() != 1 || audit.mean_error() != 0) return false;
  audit.add(.5, .25);
  audit.add(1, 0);
  return audit.mean_mass() == .75 && audit.mean_error() == .125 && audit.least_mass == .5 && audit.worst_error == .25;
}());

}  // namespace kvx
