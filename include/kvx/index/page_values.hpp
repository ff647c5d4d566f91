#pragma once
// Which values the mean of a semantic page may hold.

#include <kvx/core/annotate.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/math.hpp>

namespace kvx {

/// |v|^2, a sum of exact squares in double, ascending.   value (dim)
template <element E>
KVX_HD constexpr double square_value(const E* value, int dim) {
  double sum = 0;
  for (int d = 0; d < dim; ++d) {
    const auto x = static_cast<double>(to_float(value[d]));
    sum += x * x;
  }
  return sum;
}

/// A value without NaN and infinity, shorter than 2^58: relative to a mean of such values it is one that a code can hold (value_code.hpp).
KVX_HD constexpr bool can_be_averaged(double square) { return square < 0x1p116; }
static_assert(can_be_averaged(1) && !can_be_averaged(0x1p116));

}  // namespace kvx
