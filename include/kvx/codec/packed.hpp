#pragma once
// The fixed-width format of the faithful mode: ranges and levels of a bit plan, packed in one of two orders.

#include <kvx/codec/bit_plan.hpp>
#include <kvx/core/bits.hpp>

#include <cstdint>

namespace kvx {

/// In which order ranges and levels follow each other. All numbers go from their lowest bit to their highest, into bytes from the lowest
/// bit on; the last byte is filled with zeros.
///
/// tokens      token by token, and in each run by run: shift (16), scale (16), levels. The paper's
/// components  all ranges first, run by run, token by token; then the levels, component by component, token by token. Neighbours are alike
///             then, which DEFLATE finds: 5 % smaller
enum class packing : std::uint8_t { tokens, components };

/// No coding: every level takes the bits of the plan. A policy of a chain.
struct fixed_width {
  packing order = packing::components;
  friend constexpr bool operator==(const fixed_width&, const fixed_width&) = default;
};

/// Bytes of so many tokens, in either order; -1 where they leave 63 bits.
inline std::int64_t packed_bytes(const bit_plan& plan, std::int64_t tokens) {
  const std::int64_t bits = checked_product(plan.bits_per_token(), tokens);
  return bits < 0 ? -1 : ceil_div(bits, 8);
}

}  // namespace kvx
