#pragma once
// Roots on the device that are the host's to the bit.

#include <kvx/core/annotate.hpp>

#include <cuda_runtime.h>

#include <cmath>

namespace kvx {

/// The correctly rounded root of a double.
struct double_root {
  KVX_HD double operator()(double x) const { return ::sqrt(x); }
};

}  // namespace kvx
