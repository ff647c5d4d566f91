#pragma once
// A product that is rounded, whatever is done with it next.

#include <kvx/core/annotate.hpp>

namespace kvx {

/// a * b rounded once: no compiler fuses it with an addition that follows.
///
/// what        g++ contracts a * b + c to one operation where the target has it, across statements and intrinsics, and nvcc does; sums of
///             such products then depend on compiler and flags. Between an opaque product and the sum they cannot.
/// cost        none beside the multiplication
KVX_HD constexpr float rounded_product(float a, float b) {
  if (__builtin_is_constant_evaluated()) return a * b;
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  float product = a * b;
#if defined(__x86_64__)
  asm("" : "+x"(product));
#elif defined(__aarch64__)
  asm("" : "+w"(product));
#else
  asm("" : "+m"(product));
#endif
  return product;
#endif
}

/// The same in double precision.
KVX_HD constexpr double rounded_product(double a, double b) {
  if (__builtin_is_constant_evaluated()) return a * b;
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  double product = a * b;
#if defined(__x86_64__)
  asm("" : "+x"(product));
#elif defined(__aarch64__)
  asm("" : "+w"(product));
#else
  asm("" : "+m"(product));
#endif
  return product;
#endif
}
static_assert(rounded_product(3.0f, 0.5f) == 1.5f && rounded_product(3.0, 0.5) == 1.5);

}  // namespace kvx
