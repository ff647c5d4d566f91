#pragma once
// How much memory a call of attention takes on the device.

#include <cstdint>

namespace kvx {

/// Memory that attention needs between and behind launches.
///
/// bytes       of scratch, any contents
/// counters    zeros before the first call; every call leaves zeros
struct attend_memory {
  std::int64_t bytes = 0;
  std::int64_t counters = 0;

  friend constexpr bool operator==(const attend_memory&, const attend_memory&) = default;
};
constexpr attend_memory larger(attend_memory a, attend_memory b) {
  return {a.bytes > b.bytes ? a.bytes : b.bytes, a.counters > b.counters ? a.counters : b.counters};
}

}  // namespace kvx
