#pragma once
// Queries in whole numbers of eight bits, as the inner products with codes take them.

#include <kvx/core/annotate.hpp>
#include <kvx/core/math.hpp>

#include <cstdint>

namespace kvx {

/// The scale of a query in whole numbers.
///
/// unit        a component is unit times its whole number; 0 for a query that is zero or too small to scale, NaN for one that is not
///             finite
/// inverse     what a component is multiplied with
struct query_scale {
  float unit = 0;
  float inverse = 0;
};

KVX_HD constexpr query_scale scale_of(const float* query, std::int64_t stride, int dim) {
  float largest = 0;
  for (int d = 0; d < dim; ++d) {
    const float x = query[d * stride] < 0 ? -query[d * stride] : query[d * stride];
    if (!(x <= largest_float)) return {quiet_nan, 0};
    if (x > largest) largest = x;
  }
  if (largest < 0x1p-100f) return {};
  return {largest / 127, 127 / largest};
}

/// A component in whole numbers, ties away from 0. The product of two floats is exact in double.
KVX_HD constexpr std::int8_t whole_component(float x, float inverse) {
  const double scaled = static_cast<double>(x) * static_cast<double>(inverse);
  if (!(scaled > -128 && scaled < 128)) return 0;  // a query that is not finite: its unit is NaN
  return static_cast<std::int8_t>(static_cast<int>(scaled + (scaled < 0 ? -0.5 : 0.5)));
}
static_assert([] {
  constexpr float q[3] = {-2, 0.5f, 1};
  constexpr query_scale s = scale_of(q, 1, 3);
  return whole_component(q[0], s.inverse) == -127 && whole_component(q[1], s.inverse) == 32 && whole_component(q[2], s.inverse) == 64;
}());

}  // namespace kvx
