#pragma once
// The signed word nearest to a number.

#include <kvx/core/annotate.hpp>

#include <cstdint>

namespace kvx {

/// The nearest word, halves away from 0; for NaN the smallest.
KVX_HD constexpr std::int16_t word_of(double x) {
  if (!(x > -32768)) return -32768;
  if (x >= 32767) return 32767;
  return static_cast<std::int16_t>(x < 0 ? x - 0.5 : x + 0.5);
}
static_assert(word_of(-2.5) == -3 && word_of(2.5) == 3 && word_of(-0.4) == 0 && word_of(1e9) == 32767 && word_of(-1e9) == -32768);

}  // namespace kvx
