#pragma once
// Floats as sums of narrow numbers that tensor cores multiply exactly: so attention needs no arithmetic narrower than float.

#include <kvx/backend/cuda/mma.cuh>
#include <kvx/core/element.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// How rows of element E are multiplied.
///
/// type        a row of half or bf16 is its own operand; a float is a sum of three bf16, its 24 bits in three times 8
/// parts       so many operands are added up to one element
template <element E>
struct operand_of {
  using type = E;
  static constexpr int parts = 1;
};
template <>
struct operand_of<float> {
  using type = bf16;
  static constexpr int parts = 3;
};

/// Operands of type O that hold a query of type T to a float's precision: half has 11 bits, bf16 has 8.
template <mma_operand O, element T>
inline constexpr int query_parts = std::same_as<O, half>    ? (std::same_as<T, float> ? 2 : 1)
                                   : std::same_as<T, float> ? 3
                                   : std::same_as<T, half>  ? 2
                                                            : 1;

/// The same for prompts, whose weights are rounded to one operand anyway: 16 bits.
template <element E, element T>
inline constexpr int prompt_query_parts =
    query_parts<typename operand_of<E>::type, T> > 2 && operand_of<E>::parts == 1 ? 2 : query_parts<typename operand_of<E>::type, T>;

/// What is left of x beside the first part of it; nothing where that part is not finite, so that it stays as it is.
__device__ __forceinline__ float rest_of(float x, float part) { return part - part == 0 ? x - part : 0.0f; }

/// Two floats as words of operands, the coarsest part first.
template <mma_operand O, int Parts>
__device__ __forceinline__ void split(float low, float high, unsigned (&words)[Parts]) {
#pragma unroll
  for (int i = 0; i < Parts; ++i) {
    words[i] = pack_operands<O>(low, high);
    if (i + 1 < Parts) {
      low = rest_of(low, to_float(O{static_cast<std::uint16_t>(words[i] & 0xffffu)}));
      high = rest_of(high, to_float(O{static_cast<std::uint16_t>(words[i] >> 16)}));
    }
  }
}

/// Whether a word of two operands holds an infinity or a NaN.
template <mma_operand O>
__device__ __forceinline__ bool has_no_number(unsigned word) {
  constexpr unsigned exponent = std::same_as<O, half> ? 0x7c00u : 0x7f80u;
  return (word & exponent) == exponent || (word >> 16 & exponent) == exponent;
}

/// Which products of parts count: those at least as large as the error of the finest part.
template <int A, int B>
__device__ constexpr bool counts(int a, int b) {
  return a + b < (A > B ? A : B);
}

}  // namespace kvx
