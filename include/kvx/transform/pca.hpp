#pragma once
// A calibrated basis: what turns the features of a token into few coefficients, and back.

#include <kvx/core/element.hpp>

#include <cstdint>

namespace kvx {

/// Projection to a basis: a policy of a chain.
struct pca {
  friend constexpr bool operator==(const pca&, const pca&) = default;
};

/// The basis of a span of layers and heads; a view of what calibration made.
///
/// what        coefficients = basis (weights * (x - mean)), x = mean + basis^T coefficients / weights
/// shapes      mean, weights (features); basis (rank, features), orthonormal up to rounding to half, ordered by variance. weights null: 1
struct pca_basis {
  std::int64_t features = 0;
  std::int64_t rank = 0;
  const float* mean = nullptr;
  const float* weights = nullptr;
  const half* basis = nullptr;
};

}  // namespace kvx
