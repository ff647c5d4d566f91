#pragma once
// The element types of cached rows: float, half and bf16, and their conversions.

#include <kvx/core/annotate.hpp>

#include <concepts>
#include <cstdint>

namespace kvx {

/// bfloat16, stored; arithmetic is done in float. The bits equal those of CUDA's __nv_bfloat16.
struct bf16 {
  std::uint16_t bits = 0;
  friend constexpr bool operator==(const bf16&, const bf16&) = default;
};

/// IEEE binary16, stored; arithmetic is done in float. The bits equal those of CUDA's __half and of _Float16.
struct half {
  std::uint16_t bits = 0;
  friend constexpr bool operator==(const half&, const half&) = default;
};

template <class T>
concept element = std::same_as<T, float> || std::same_as<T, half> || std::same_as<T, bf16>;

/// The value of an element. Exact; devices convert half in one instruction, which keeps no payload of a NaN.
KVX_HD constexpr float to_float(float x) { return x; }

KVX_HD constexpr float to_float(bf16 x) { return __builtin_bit_cast(float, static_cast<std::uint32_t>(x.bits) << 16); }

KVX_HD constexpr float to_float(half x) {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) {
    float converted = 0;
    asm("cvt.f32.f16 %0, %1;" : "=f"(converted) : "h"(x.bits));
    return converted;
  }
#endif
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return __builtin_bit_cast(float, sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);  // inf, NaN
  if (magnitude >= 0x400u) return __builtin_bit_cast(float, sign | ((magnitude << 13) + 0x38000000u));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return sign != 0 ? -subnormal : subnormal;
}

/// The nearest element, ties to even; NaN stays NaN, what is too large becomes infinite.
template <element E>
KVX_HD constexpr E round_to(float x) {
  if constexpr (std::same_as<E, float>) {
    return x;
  } else {
    const std::uint32_t u = __builtin_bit_cast(std::uint32_t, x);
    const std::uint32_t magnitude = u & 0x7fffffffu;
    const std::uint32_t sign = u >> 16 & 0x8000u;
    if constexpr (std::same_as<E, bf16>) {
      if (magnitude > 0x7f800000u) return {static_cast<std::uint16_t>(u >> 16 | 0x40u)};
      return {static_cast<std::uint16_t>((u + 0x7fffu + (u >> 16 & 1u)) >> 16)};
    } else {
#if defined(__CUDA_ARCH__)
      if (!__builtin_is_constant_evaluated() && magnitude <= 0x7f800000u) {
        std::uint16_t converted = 0;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(converted) : "f"(x));
        return {converted};
      }
#endif
      if (magnitude > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu))};
      if (magnitude >= 0x477ff000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // 65520 and more
      if (magnitude >= 0x38800000u) {
        const std::uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
        return {static_cast<std::uint16_t>(sign | (rounded - 0x38000000u) >> 13)};
      }
      // Subnormal: adding 2^-1 aligns the last bit of the result with the last bit of the sum, which rounds to even.
      const float aligned = __builtin_bit_cast(float, magnitude) + 0.5f;
      return {static_cast<std::uint16_t>(sign | (__builtin_bit_cast(std::uint32_t, aligned) - 0x3f000000u))};
    }
  }
}
static_assert(round_to<half>(65519.99f).bits == 0x7bff && round_to<half>(65520.f).bits == 0x7c00);
static_assert(round_to<half>(0x1p-25f).bits == 0 && round_to<half>(0x1.8p-25f).bits == 1 && to_float(half{1}) == 0x1p-24f);
static_assert(round_to<bf16>(0x1.01p0f).bits == 0x3f80 && round_to<bf16>(0x1.03p0f).bits == 0x3f82);

}  // namespace kvx
