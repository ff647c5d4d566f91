#pragma once
// The rANS kernel for every instruction set in one program, apart from dispatch.hpp: only programs that store caches compile it.

#include <kvx/backend/simd/level.hpp>
#include <kvx/backend/simd/rans_lanes_baseline.hpp>
#include <kvx/backend/simd/rans_table.hpp>

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__CUDACC__)
#pragma nv_diagnostic push
#pragma nv_diag_suppress 1675  // nvcc hands `#pragma GCC unroll` on to the host compiler, but warns of it
#endif

// clang-format off
namespace kvx::simd::baseline {
#include <kvx/backend/simd/rans_kernels.hpp>
}  // namespace kvx::simd::baseline

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#include <kvx/backend/simd/rans_lanes_avx2.hpp>
namespace kvx::simd::avx2 {
#include <kvx/backend/simd/rans_kernels.hpp>
}  // namespace kvx::simd::avx2
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif
#include <kvx/backend/simd/rans_lanes_avx512.hpp>
namespace kvx::simd::avx512 {
#include <kvx/backend/simd/rans_kernels.hpp>
}  // namespace kvx::simd::avx512
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
// clang-format on

#if defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif

namespace kvx::simd {

/// The rANS decoder of one set, which the processor must support.
inline rans_function rans_kernel_of(instruction_set s) {
#if defined(__x86_64__)
  if (s == instruction_set::avx512) return avx512::rans_decode;
  if (s == instruction_set::avx2) return avx2::rans_decode;
#endif
  return baseline::rans_decode;
}

/// The rANS decoder of this process; see simd_level().
inline rans_function rans_kernel() { return rans_kernel_of(simd_level().used); }

}  // namespace kvx::simd
