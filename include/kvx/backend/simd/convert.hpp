#pragma once
// Rows of one element type to another by the kernels of this machine.

#include <kvx/backend/simd/dispatch.hpp>
#include <kvx/core/element.hpp>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <cstring>

namespace kvx::simd {

/// to[i] = from[i], rounded to nearest even where E is narrower: the bits of round_to<E>(to_float(x)), except that a signalling NaN
/// becomes quiet.
///
/// shapes      to, from (n), dense, of any alignment; nothing beyond is read or written
/// cost        a copy; between two 16-bit types by way of floats in the L1 cache
template <element E, element T>
void convert_row(E* to, const T* from, std::int64_t n) {
  if (n <= 0) return;
  if constexpr (std::same_as<E, T>) {
    std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(E));
  } else {
    const kernel_table& table = kernels();
    constexpr std::int64_t step = 512;
    float floats[step + padding];
    for (std::int64_t i = 0; i < n; i += step) {
      const auto count = static_cast<std::int32_t>(std::clamp<std::int64_t>(n - i, 1, step));
      if constexpr (std::same_as<T, float>) {
        table.template conversions<E>().from_floats(from + i, count, to + i);
      } else {
        table.template conversions<T>().to_floats(from + i, count, floats);
        if constexpr (std::same_as<E, float>) {
          std::memcpy(to + i, floats, static_cast<std::size_t>(count) * sizeof(float));
        } else {
          table.template conversions<E>().from_floats(floats, count, to + i);
        }
      }
    }
  }
}

}  // namespace kvx::simd
