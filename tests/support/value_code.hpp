#pragma once
// The code of a value, by its definition: that of a key with one weight, its bits put into fields one after the other.

#include "key_code.hpp"

#include <kvx/core/element.hpp>
#include <kvx/core/math.hpp>
#include <kvx/sketch/value_code.hpp>
#include <kvx/transform/srht.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvx::test {

/// The columns of the values of one page of one head.
struct coded_values {
  std::vector<std::uint8_t> codes;  // (P, value_row_bytes)
  std::vector<half> scales;         // (P); none where bits = 0
  std::vector<bf16> means;          // (Dv)

  coded_values(int bits, int dim, int page_tokens)
      : codes(static_cast<std::size_t>(value_row_bytes(bits, dim) * page_tokens)),
        scales(bits > 0 ? static_cast<std::size_t>(page_tokens) : 0),
        means(static_cast<std::size_t>(dim)) {}

  page_values<true> columns() { return {codes.data(), scales.data(), means.data()}; }
  friend bool operator==(const coded_values&, const coded_values&) = default;
};

/// Encodes a page.   values (page_tokens, dim)
template <class E>
coded_values encode_values_slowly(int bits, std::uint64_t seed, const std::vector<E>& values, int dim) {
  const int page_tokens = static_cast<int>(values.size()) / dim;
  coded_values page(bits, dim, page_tokens);
  const key_sketch s = value_sketch(bits, seed);
  const coded_page code = encode_page_slowly(s, values, dim, nullptr);
  page.means = code.means;
  if (bits == 0) return page;
  page.scales = code.weights;
  const std::int64_t row = value_row_bytes(bits, dim);
  for (int t = 0; t < page_tokens; ++t) {
    if (is_nan(to_float(code.weights[static_cast<std::size_t>(t)]))) continue;
    for (int d = 0; d < dim; ++d) {
      const int sign = is_nonnegative(code.signs.data(), page_tokens, t, d) ? 1 : 0;
      const int field = cell_of(code.magnitudes.data() + t * (bits - 1) * plane_bytes(dim), s, dim, d) | sign << (bits - 1);
      page.codes[static_cast<std::size_t>(t * row + d / (8 / bits))] |= static_cast<std::uint8_t>(field << d % (8 / bits) * bits);
    }
  }
  return page;
}

/// What a code says of a value beside the mean of its page, in double.   result (dim)
template <int Bits>
std::vector<double> decoded_value(const std::uint8_t* code, half scale, int dim, std::uint64_t seed) {
  const value_levels levels = value_levels_of<Bits>(dim);
  std::vector<double> v;
  for (int d = 0; d < dim; ++d)
    v.push_back(static_cast<double>(to_float(scale)) * static_cast<double>(levels.unit) *
                levels.level[static_cast<std::size_t>(value_field(code, Bits, d))]);
  hadamard(v.data(), v.size());
  std::size_t first = 0;
  for (std::size_t left = v.size(); left > 0;) {
    const std::size_t p = power_of_two_below(left);
    for (std::size_t j = first; j < first + p; ++j) v[j] *= static_cast<double>(inverse_root(p));
    first += p;
    left -= p;
  }
  for (std::size_t j = 0; j < v.size(); ++j) {
    if (sign_of(seed, j) != 0) v[j] = -v[j];
  }
  return v;
}

}  // namespace kvx::test
