#pragma once
// Which channels of a head a rotary embedding turns into each other.

#include <kvx/core/annotate.hpp>

#include <cstdint>

namespace kvx {

/// Which channels a rotary embedding turns into each other, among the first `dims` ones: 2 i with 2 i + 1, or i with i + dims / 2.
struct rope_pairs {
  enum class order : std::uint8_t { none, interleaved, halves };
  order channels = order::none;
  int dims = 0;

  /// The channel that d is turned with; d itself beyond the rotary ones.
  KVX_HD constexpr int partner(int d) const {
    if (channels == order::none || d >= dims / 2 * 2) return d;
    if (channels == order::interleaved) return d ^ 1;
    return d < dims / 2 ? d + dims / 2 : d - dims / 2;
  }
  friend constexpr bool operator==(const rope_pairs&, const rope_pairs&) = default;
};
static_assert(rope_pairs{rope_pairs::order::halves, 64}.partner(40) == 8);
static_assert(rope_pairs{rope_pairs::order::interleaved, 64}.partner(64) == 64);

}  // namespace kvx
