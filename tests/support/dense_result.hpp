#pragma once
// Queries, results of dense attention, and their comparison with the reference: for runners of any backend.

#include "dense_attention.hpp"

#include <kvx/core/element.hpp>
#include <kvx/core/tensor_view.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

namespace kvx::test {

/// Random queries, or the outputs that a call left.
template <class T>
struct query_rows {
  std::int64_t n, heads, dim;
  std::vector<T> data;

  query_rows(std::int64_t count, std::int64_t query_heads, std::int64_t components, unsigned seed)
      : n(count), heads(query_heads), dim(components), data(static_cast<std::size_t>(count * query_heads * components)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (T& x : data) x = round_to<T>(normal(random));
  }
  tensor_view<const T, 3> view() const { return tensor_view<const T, 3>(data.data(), n, heads, dim); }
  /// Rows [first, first + count) alone.
  query_rows rows(std::int64_t first, std::int64_t count) const {
    query_rows part(0, heads, dim, 0);
    part.n = count;
    part.data.assign(data.begin() + first * heads * dim, data.begin() + (first + count) * heads * dim);
    return part;
  }
};

template <class T>
struct dense_result {
  std::vector<T> out;      // (N, Q, Dv)
  std::vector<float> lse;  // (N, Q)
  friend bool operator==(const dense_result&, const dense_result&) = default;
};

/// Whether a result equals the reference.
///
/// exactness   scores of some units in nats, values of size 1 to 5: 2e-5, and the rounding of T; NaN where the reference has NaN;
///             rounded_weights more where weights are rounded
template <class T>
void check_close(const dense_result<T>& result, const dense_reference& expected, double rounded_weights = 0) {
  const double unit = std::is_same_v<T, float> ? 1e-6 : std::is_same_v<T, half> ? 0x1p-11 : 0x1p-8;
  double worst = 0;
  for (std::size_t i = 0; i < result.out.size(); ++i) {
    const auto x = static_cast<double>(to_float(result.out[i]));
    const double error = std::abs(x - expected.out[i]) / (2e-5 + rounded_weights + unit * std::abs(expected.out[i]));
    worst = std::max(worst, std::isnan(expected.out[i]) ? (std::isnan(x) ? 0 : 1e9) : std::isnan(error) ? 1e9 : error);
  }
  CHECK(worst <= 1);
  double worst_lse = 0;
  for (std::size_t i = 0; i < result.lse.size(); ++i) {
    const auto x = static_cast<double>(result.lse[i]);
    if (std::isinf(expected.lse[i]) || std::isnan(expected.lse[i])) {
      worst_lse = std::max(worst_lse, x == expected.lse[i] || (std::isnan(x) && std::isnan(expected.lse[i])) ? 0 : 1e9);
    } else {
      worst_lse = std::max(worst_lse, std::isnan(x) ? 1e9 : std::abs(x - expected.lse[i]) / (2e-5 + 1e-6 * std::abs(expected.lse[i])));
    }
  }
  CHECK(worst_lse <= 1);
}

}  // namespace kvx::test
