#pragma once
// What multiplies the inner product of a query and a key.

#include <cmath>
#include <cstdint>

namespace kvx {

/// The caller's scale; 0 means 1 / sqrt(D).
inline float logit_scale(float scale, std::int64_t key_dim) { return scale != 0 ? scale : 1 / std::sqrt(static_cast<float>(key_dim)); }

}  // namespace kvx
