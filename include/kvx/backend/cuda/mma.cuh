#pragma once
// Products of small matrices on tensor cores, and loads of their operands: mma.m16n8k16 and ldmatrix, each behind one function.

#include <kvx/core/element.hpp>

#include <cuda_runtime.h>

#include <concepts>
#include <cstdint>

namespace kvx {

/// What tensor cores multiply without rounding, sums being floats.
template <class O>
concept mma_operand = std::same_as<O, half> || std::same_as<O, bf16>;

/// c += a b, by the 32 lanes of a warp.
///
/// shapes      a (16, 16), b (16, 8), c (16, 8). With lane = 4 g + t, words of two operands, the first in the low half:
///             a = {(g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8)}, b = {(2t, g), (2t + 8, g)} of which the second is the next row,
///             c = {(g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)}
/// exactness   products are exact; sums are floats that devices may truncate, in an order of their own
/// source      PTX ISA, mma.m16n8k16
template <mma_operand O>
__device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#if defined(__CUDACC__)
  if constexpr (std::same_as<O, half>) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#else
  const unsigned b[2] = {b0, b1};
  ::simt::mma_m16n8k16(c, a, b, __FILE__, __LINE__, std::same_as<O, bf16>);
#endif
}

/// Four matrices (8, 8) of 16-bit values from shared memory.
///
/// shapes      lane 8 i + r names row r of matrix i: 16 bytes on a multiple of 16. Lane 4 g + t gets words[i] = (g, 2t), (g, 2t + 1) of
///             matrix i
/// source      PTX ISA, ldmatrix
__device__ __forceinline__ void load_matrices(unsigned (&words)[4], const void* row) {
#if defined(__CUDACC__)
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
#else
  ::simt::ldmatrix_x4(words, row, __FILE__, __LINE__, false);
#endif
}

/// The same matrices transposed: words[i] = (2t, g), (2t + 1, g) of matrix i.
__device__ __forceinline__ void load_transposed(unsigned (&words)[4], const void* row) {
#if defined(__CUDACC__)
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
#else
  ::simt::ldmatrix_x4(words, row, __FILE__, __LINE__, true);
#endif
}

/// Two floats rounded to a word of operands, `low` in its low half. NaN stays NaN.
template <mma_operand O>
__device__ __forceinline__ unsigned pack_operands(float low, float high) {
#if defined(__CUDACC__)
  unsigned word = 0;
  if constexpr (std::same_as<O, half>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
#else
  return round_to<O>(low).bits | static_cast<unsigned>(round_to<O>(high).bits) << 16;
#endif
}

}  // namespace kvx
