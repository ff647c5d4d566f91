#pragma once
// What transform coding is compared with: whole numbers of two or four bits, with a minimum and a scale for every group of them.

#include "coded_rows.hpp"

#include <kvx/codec/quantize.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace quality {

/// Keys, after RoPE, by channel over groups of tokens; values by token over groups of channels; minimum and scale in half.
///
/// group       numbers that share a minimum; the last of a context or head may have fewer
/// source      KIVI (arXiv 2402.02750); without its window of newest rows, which is the bench's for all methods
struct grouped_rounding {
  int bits = 4;
  std::int64_t group = 64;
};

/// Rounds `count` numbers that lie `stride` apart, each to the nearest level; the squared error.
inline double round_group(const kvx::bf16* from, kvx::bf16* to, std::int64_t count, std::int64_t stride, int bits) {
  float low = std::numeric_limits<float>::max(), high = std::numeric_limits<float>::lowest();
  for (std::int64_t i = 0; i < count; ++i) {
    low = std::min(low, kvx::to_float(from[i * stride]));
    high = std::max(high, kvx::to_float(from[i * stride]));
  }
  const kvx::run_range range = kvx::make_range(low, high, bits);
  double error = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const float x = kvx::to_float(from[i * stride]), back = kvx::value_of(kvx::level_of(x, range, bits), range);
    error += static_cast<double>(x - back) * static_cast<double>(x - back);
    to[i * stride] = kvx::round_to<kvx::bf16>(back);
  }
  return error;
}

/// Rows rounded, all layers and heads.
///
/// shapes      of a token key_features, value_features numbers, heads of `dim`
/// bytes       levels without gaps, 4 bytes a group
inline coded_rows round_rows(const grouped_rounding& rounding, std::int64_t dim, const context_rows& rows) {
  coded_rows result;
  result.keys.resize(rows.keys.size());
  result.values.resize(rows.values.size());
  const std::int64_t n = rows.tokens, keys = static_cast<std::int64_t>(rows.keys.size()) / n,
                     values = static_cast<std::int64_t>(rows.values.size()) / n;
  std::int64_t groups = 0;
  for (std::int64_t t = 0; t < n; t += rounding.group) {
    for (std::int64_t f = 0; f < keys; ++f, ++groups) {
      result.key_error += round_group(rows.keys.data() + t * keys + f, result.keys.data() + t * keys + f, std::min(rounding.group, n - t),
                                      keys, rounding.bits);
    }
  }
  for (std::int64_t head = 0; head < n * values; head += dim) {
    for (std::int64_t d = 0; d < dim; d += rounding.group, ++groups) {
      result.value_error +=
          round_group(rows.values.data() + head + d, result.values.data() + head + d, std::min(rounding.group, dim - d), 1, rounding.bits);
    }
  }
  result.key_error /= static_cast<double>(n);
  result.value_error /= static_cast<double>(n);
  result.bytes = (n * (keys + values) * rounding.bits + 7) / 8 + 4 * groups;
  return result;
}

}  // namespace quality
