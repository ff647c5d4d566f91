#pragma once
// A product in single precision that is rounded, whatever is done with it next.

#include <kvx/core/annotate.hpp>

#include <type_traits>

namespace kvx {

/// a * b rounded to float: no compiler fuses it with an addition that follows.
///
/// what        g++ contracts a * b + c to one operation where the target has it, across statements and intrinsics, and nvcc does; sums of
///             such products then depend on compiler and flags. Between an opaque product and the sum they cannot.
/// cost        none beside the multiplication
KVX_HD constexpr float rounded_product(float a, float b) {
  if (std::is_constant_evaluated()) return a * b;
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
static_assert(rounded_product(3, 0.5f) == 1.5f);

}  // namespace kvx
