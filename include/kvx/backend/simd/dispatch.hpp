#pragma once
// The inner kernels for every instruction set in one program, whatever flags it is compiled with, and the choice among them.

#include <kvx/backend/simd/bytes_baseline.hpp>
#include <kvx/backend/simd/encode_lanes_baseline.hpp>
#include <kvx/backend/simd/encode_table.hpp>
#include <kvx/backend/simd/lanes_baseline.hpp>
#include <kvx/backend/simd/level.hpp>
#include <kvx/backend/simd/page_table.hpp>
#include <kvx/backend/simd/rerank_lanes_baseline.hpp>
#include <kvx/backend/simd/rerank_table.hpp>
#include <kvx/backend/simd/scan_table.hpp>
#include <kvx/backend/simd/table.hpp>
#include <kvx/backend/simd/value_lanes_baseline.hpp>
#include <kvx/backend/simd/value_table.hpp>

#include <cstdint>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__CUDACC__)
#pragma nv_diagnostic push
#pragma nv_diag_suppress 1675  // nvcc hands `#pragma GCC unroll` on to the host compiler, but warns of it
#endif

// A list of kernels uses those above it.
// clang-format off
namespace kvx::simd::baseline {
#include <kvx/backend/simd/kernels.hpp>
#include <kvx/backend/simd/code_kernels.hpp>
#include <kvx/backend/simd/encode_kernels.hpp>
#include <kvx/backend/simd/rerank_kernels.hpp>
#include <kvx/backend/simd/line_words.hpp>
#include <kvx/backend/simd/page_kernels.hpp>
#include <kvx/backend/simd/scan_kernels.hpp>
#include <kvx/backend/simd/value_kernels.hpp>
}  // namespace kvx::simd::baseline

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#include <kvx/backend/simd/bytes_avx2.hpp>
#include <kvx/backend/simd/lanes_avx2.hpp>
#include <kvx/backend/simd/encode_lanes_avx2.hpp>
#include <kvx/backend/simd/rerank_lanes_avx2.hpp>
namespace kvx::simd::avx2 {
#include <kvx/backend/simd/value_ymm.hpp>
}  // namespace kvx::simd::avx2
#include <kvx/backend/simd/value_lanes_avx2.hpp>
namespace kvx::simd::avx2 {
#include <kvx/backend/simd/kernels.hpp>
#include <kvx/backend/simd/code_kernels.hpp>
#include <kvx/backend/simd/encode_kernels.hpp>
#include <kvx/backend/simd/rerank_kernels.hpp>
#include <kvx/backend/simd/line_words.hpp>
#include <kvx/backend/simd/page_kernels.hpp>
#include <kvx/backend/simd/scan_kernels.hpp>
#include <kvx/backend/simd/value_kernels.hpp>
}  // namespace kvx::simd::avx2
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif
#include <kvx/backend/simd/bytes_avx512.hpp>
#include <kvx/backend/simd/lanes_avx512.hpp>
#include <kvx/backend/simd/encode_lanes_avx512.hpp>
#include <kvx/backend/simd/rerank_lanes_avx512.hpp>
namespace kvx::simd::avx512 {
#include <kvx/backend/simd/kernels.hpp>
#include <kvx/backend/simd/encode_kernels.hpp>
#include <kvx/backend/simd/rerank_kernels.hpp>
#include <kvx/backend/simd/line_words.hpp>
#include <kvx/backend/simd/page_kernels.hpp>
#include <kvx/backend/simd/scan_kernels.hpp>
}  // namespace kvx::simd::avx512
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")
#endif
#include <kvx/backend/simd/code_lanes_vnni.hpp>
namespace kvx::simd::avx512_vnni {
#include <kvx/backend/simd/value_ymm.hpp>
}  // namespace kvx::simd::avx512_vnni
#include <kvx/backend/simd/value_lanes_vnni.hpp>
namespace kvx::simd::avx512_vnni {
#include <kvx/backend/simd/code_kernels.hpp>
#include <kvx/backend/simd/value_kernels.hpp>
}  // namespace kvx::simd::avx512_vnni
#include <kvx/backend/simd/line_words_vnni.hpp>
namespace kvx::simd::avx512_vnni {
#include <kvx/backend/simd/page_kernels.hpp>
}  // namespace kvx::simd::avx512_vnni
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

template <class E>
const row_kernels<E>& kernel_table::rows() const {
#if defined(__x86_64__)
  if (set == instruction_set::avx512) return avx512::rows_of<E>;
  if (set == instruction_set::avx2) return avx2::rows_of<E>;
#endif
  return baseline::rows_of<E>;
}

template <class E>
const row_conversions<E>& kernel_table::conversions() const {
#if defined(__x86_64__)
  if (set == instruction_set::avx512) return avx512::conversions_of<E>;
  if (set == instruction_set::avx2) return avx2::conversions_of<E>;
#endif
  return baseline::conversions_of<E>;
}

template <class E>
const mean_functions<E>& encode_table::means() const {
#if defined(__x86_64__)
  if (set == instruction_set::avx512) return avx512::means_of<E>;
  if (set == instruction_set::avx2) return avx2::means_of<E>;
#endif
  return baseline::means_of<E>;
}

template <class E, int MagnitudeBits>
encode_function<E> encode_table::encode() const {
#if defined(__x86_64__)
  if (set == instruction_set::avx512) return avx512::encode_keys<E, MagnitudeBits>;
  if (set == instruction_set::avx2) return avx2::encode_keys<E, MagnitudeBits>;
#endif
  return baseline::encode_keys<E, MagnitudeBits>;
}

template <int MagnitudeBits>
code_function rerank_table::code_sums() const {
#if defined(__x86_64__)
  if (set == instruction_set::avx512 && has_byte_dot_products()) return avx512_vnni::code_sums<MagnitudeBits>;
  if (set != instruction_set::baseline) return avx2::code_sums<MagnitudeBits>;
#endif
  return baseline::code_sums<MagnitudeBits>;
}

template <int Bits>
value_function value_sums_of([[maybe_unused]] instruction_set set) {
#if defined(__x86_64__)
  if (set == instruction_set::avx512 && has_byte_dot_products()) return avx512_vnni::value_sums<Bits>;
  if (set != instruction_set::baseline) return avx2::value_sums<Bits>;
#endif
  return baseline::value_sums<Bits>;
}

/// The kernels of one set, which the processor must support: a kernel_table, encode_table, rerank_table, scan_table or page_table. A
/// template, as are those above: a program of many units may declare them extern, and compile the kernels once (explicit instantiation).
template <class Table>
const Table& table_of([[maybe_unused]] instruction_set s) {
#if defined(__x86_64__)
  if (std::is_same_v<Table, page_table> && s == instruction_set::avx512 && has_byte_dot_products()) return avx512_vnni::functions<Table>;
  if (s == instruction_set::avx512) return avx512::functions<Table>;
  if (s == instruction_set::avx2) return avx2::functions<Table>;
#endif
  return baseline::functions<Table>;
}

inline const kernel_table& kernels_of(instruction_set s) { return table_of<kernel_table>(s); }
inline const encode_table& encode_kernels_of(instruction_set s) { return table_of<encode_table>(s); }
inline const rerank_table& rerank_kernels_of(instruction_set s) { return table_of<rerank_table>(s); }
inline const scan_table& scan_kernels_of(instruction_set s) { return table_of<scan_table>(s); }
inline const page_table& page_kernels_of(instruction_set s) { return table_of<page_table>(s); }

/// The kernels of this process; see simd_level().
inline const kernel_table& kernels() { return kernels_of(simd_level().used); }
inline const encode_table& encode_kernels() { return encode_kernels_of(simd_level().used); }
inline const rerank_table& rerank_kernels() { return rerank_kernels_of(simd_level().used); }
inline const scan_table& scan_kernels() { return scan_kernels_of(simd_level().used); }
inline const page_table& page_kernels() { return page_kernels_of(simd_level().used); }

}  // namespace kvx::simd
