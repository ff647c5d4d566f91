#pragma once
// What attention in tiers is by its definition, for one head: weighted values in double, one after the other.

#include "retrieve_case.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace kvx::test {

/// What one group sees of a zone in tiers.
struct tiered_reference {
  std::vector<double> out;    // (N, Q, Dv)
  std::vector<double> bound;  // (N, Q): what rounding weights to 1/254 of the largest may do to a component of out
  std::vector<double> lse;    // (N, Q)
  std::int64_t coded = 0;     // coded rows, pages with a tail, tokens in them: of all units
  std::int64_t tails = 0;
  std::int64_t tail_tokens = 0;
};

/// What weighs in a softmax: a logit, how often it counts, a value.
struct weighted {
  double logit = 0;
  double times = 1;
  std::vector<double> value;
  double coded_norm = 0;  // of what comes from a value's code

  /// Adds what the code of a value says beside the mean of its page.
  void add_code(const std::vector<double>& v) {
    double square = 0;
    for (std::size_t d = 0; d < v.size(); ++d) {
      value[d] += v[d];
      square += v[d] * v[d];
    }
    coded_norm = std::sqrt(square);
  }
};

/// Adds the softmax over these to a reference.
inline void add_head(const std::vector<weighted>& all, int value_dim, tiered_reference& r) {
  double most = -std::numeric_limits<double>::infinity(), sum = 0, largest = 0, squares = 0;
  for (const weighted& m : all) most = std::max(most, m.logit);
  std::vector<double> out(static_cast<std::size_t>(value_dim));
  for (const weighted& m : all) {
    const double e = m.times * std::exp(m.logit - most);
    sum += e;
    for (std::size_t d = 0; d < out.size(); ++d) out[d] += e * m.value[d];
    largest = std::max(largest, m.coded_norm * (m.coded_norm > 0 ? e : 0));
    squares += m.coded_norm > 0 ? 1 : 0;
  }
  // A weight times its scale is rounded by at most 1/254 of the largest of its 32; errors of many tokens add up like noise.
  r.bound.push_back(sum > 0 ? 2 * largest / sum / 254 * std::sqrt(squares) : 0);
  for (const double x : out) r.out.push_back(sum > 0 ? x / sum : 0);
  r.lse.push_back(sum > 0 ? most + std::log(sum) : -std::numeric_limits<double>::infinity());
}

/// The largest difference between an answer and its reference, in units of the tolerance: 3e-5 + 1e-6 of the value, and the bound of the
/// head's coded values.
inline double distance(const retrieved& got, const tiered_reference& expected) {
  if (got.out.size() != expected.out.size() || got.lse.size() != expected.lse.size()) return 1e9;
  double worst = 0;
  const auto compare = [&](float x, double y, double bound) {
    if (static_cast<double>(x) == y) return;
    const double error = std::abs(static_cast<double>(x) - y) / (3e-5 + 1e-6 * std::abs(y) + bound);
    worst = std::max(worst, std::isnan(error) ? 1e9 : error);
  };
  const std::size_t dim = got.lse.empty() ? 1 : got.out.size() / got.lse.size();
  for (std::size_t i = 0; i < got.out.size(); ++i) compare(got.out[i], expected.out[i], expected.bound[i / dim]);
  for (std::size_t i = 0; i < got.lse.size(); ++i) compare(got.lse[i], expected.lse[i], 0);
  return worst;
}

}  // namespace kvx::test
