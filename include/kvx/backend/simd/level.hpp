#pragma once
// Which instruction set the inner kernels use: what the processor has, unless the environment variable KVX_SIMD asks for less.

#include <cstdlib>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace kvx {

/// The sets that the kernels of backend/simd are compiled for, ascending.
///
/// baseline    whatever the compiler may use without being asked: SSE2 on x86-64, NEON on AArch64
/// avx2        AVX2, FMA, F16C
/// avx512      AVX-512 F, BW, DQ, VL
enum class instruction_set { baseline, avx2, avx512 };

constexpr const char* name_of(instruction_set s) {
  return s == instruction_set::avx512 ? "avx512" : s == instruction_set::avx2 ? "avx2" : "baseline";
}

/// The outcome of detection.
///
/// detected    the best set that processor and operating system support
/// used        the set of kernels(): detected, or the lower one that KVX_SIMD names
/// refused     KVX_SIMD is set to something else than a supported set, and was ignored
struct simd_choice {
  instruction_set detected = instruction_set::baseline;
  instruction_set used = instruction_set::baseline;
  bool refused = false;
};

/// The best set of this processor. __builtin_cpu_supports asks XGETBV too: registers that the system does not save do not count.
inline instruction_set detect_instruction_set() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & 1u << 29) != 0;  // clang 14 cannot be asked for it by name
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !f16c) return instruction_set::baseline;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq") ||
      !__builtin_cpu_supports("avx512vl")) {
    return instruction_set::avx2;
  }
  return instruction_set::avx512;
#else
  return instruction_set::baseline;
#endif
}

/// AVX-512 VNNI, which processors with AVX-512 have from 2019 on: byte dot products in one instruction. What has no form for the others of
/// them takes that of AVX2.
inline bool has_byte_dot_products() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx512vnni") != 0;
  return has;
#else
  return false;
#endif
}

/// The choice for a processor and a request; no request is nullptr or empty.
constexpr simd_choice choose_instruction_set(instruction_set detected, const char* request) {
  if (request == nullptr || *request == 0) return {detected, detected, false};
  for (const auto s : {instruction_set::baseline, instruction_set::avx2, instruction_set::avx512}) {
    if (std::string_view(request) == name_of(s))
      return s <= detected ? simd_choice{detected, s, false} : simd_choice{detected, detected, true};
  }
  return {detected, detected, true};
}
static_assert(choose_instruction_set(instruction_set::avx512, "avx2").used == instruction_set::avx2);
static_assert(choose_instruction_set(instruction_set::avx2, "avx512").refused &&
              choose_instruction_set(instruction_set::avx2, "sse").refused);

/// The choice of this process, made at the first call: a later change of the environment changes nothing.
inline const simd_choice& simd_level() {
  static const simd_choice choice = choose_instruction_set(detect_instruction_set(), std::getenv("KVX_SIMD"));
  return choice;
}

}  // namespace kvx
