#pragma once
// Matrix products by Eigen: opt-in, link Eigen3::Eigen and compile for the processor that runs them.

#include <kvx/transform/matrix_product.hpp>

#include <Eigen/Core>

#include <cstdint>

namespace kvx {

inline void eigen_product(void*, const matrix_product::shape& s, const float* a, std::int64_t a_pitch, const float* b, std::int64_t b_pitch,
                          float* c, std::int64_t c_pitch) {
  using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using pitched = Eigen::OuterStride<>;
  const Eigen::Map<const matrix, 0, pitched> left(a, s.transposed ? s.k : s.m, s.transposed ? s.m : s.k, pitched(a_pitch));
  const Eigen::Map<const matrix, 0, pitched> right(b, s.k, s.n, pitched(b_pitch));
  Eigen::Map<matrix, 0, pitched> out(c, s.m, s.n, pitched(c_pitch));
  if (!s.add) out.setZero();
  if (s.transposed) {
    out.noalias() += left.transpose() * right;
  } else {
    out.noalias() += left * right;
  }
}

/// Eigen's product, one thread a call.
inline matrix_product eigen_products() { return {eigen_product, nullptr}; }

}  // namespace kvx
