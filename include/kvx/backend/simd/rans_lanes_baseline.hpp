#pragma once
// The states of 32 rANS lanes as plain loops: every processor, no intrinsics.

#include <kvx/backend/simd/rans_table.hpp>

#include <cstdint>
#include <cstring>

namespace kvx::simd::baseline {

/// See rans_lanes_avx2.hpp.
struct rans_vectors {
  std::uint32_t x[rans_lanes];

  struct entries {
    const symbol_lookup& table;
    explicit entries(const symbol_lookup& t) : table(t) {}
  };

  struct symbols {
    std::uint8_t s[rans_lanes];
    void store(const entries& e, std::int16_t* out) const {
      for (int i = 0; i < rans_lanes; ++i) out[i] = static_cast<std::int16_t>(s[i] + e.table.offset);
    }
    std::uint32_t equal_to(const entries& e) const {
      std::uint32_t lanes_of = 0;
      for (int i = 0; i < rans_lanes; ++i) lanes_of |= std::uint32_t{s[i] == e.table.escape} << i;
      return lanes_of;
    }
  };

  static rans_vectors load(const std::uint32_t* p) {
    rans_vectors r;
    std::memcpy(r.x, p, sizeof r.x);
    return r;
  }
  void store(std::uint32_t* p) const { std::memcpy(p, x, sizeof x); }

  void take_word(int i, const std::uint8_t*& next) {
    if (x[i] >= rans_least) return;
    x[i] = x[i] << 16 | static_cast<std::uint32_t>(next[0] | next[1] << 8);
    next += 2;
  }

  template <bool Masked>
  symbols take_symbols(const entries& e, int active, const std::uint8_t*& next) {
    symbols r;
    if constexpr (Masked) std::memset(r.s, 0, sizeof r.s);
    for (int i = 0; i < active; ++i) {
      const std::uint32_t slot = x[i] & ((1u << rans_bits) - 1), low = slot & 255;
      const std::uint32_t bucket = e.table.buckets[slot >> 8];
      const bool aliased = low >= (bucket & 255);
      const std::uint32_t s = aliased ? bucket >> 8 & 15 : slot >> 8;
      const std::uint32_t shift = aliased ? static_cast<std::uint32_t>(static_cast<std::int32_t>(bucket) >> 16) : 0;
      x[i] = e.table.frequencies[s] * (x[i] >> rans_bits) + low + shift;
      r.s[i] = static_cast<std::uint8_t>(s);
      take_word(i, next);
    }
    return r;
  }

  template <bool Masked>
  void take_raw_bits(const entries& e, int bits, int active, const std::uint8_t*& next, const symbols& s, std::int16_t* out) {
    for (int i = 0; i < rans_lanes; ++i) out[i] = static_cast<std::int16_t>((s.s[i] << bits) + e.table.offset);
    for (int i = 0; i < active; ++i) {
      out[i] = static_cast<std::int16_t>(out[i] + static_cast<std::int32_t>(x[i] & ((1u << bits) - 1)));
      x[i] >>= bits;
      take_word(i, next);
    }
  }
};

}  // namespace kvx::simd::baseline
