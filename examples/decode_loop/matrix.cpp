#include "matrix.hpp"

#include "shares.hpp"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12 says so, wrongly, of its own _mm512_max_ps
#endif
#include <Eigen/Core>

#include <algorithm>
#include <chrono>
#include <vector>

namespace decode_loop {
namespace {

using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using vector = Eigen::Matrix<float, Eigen::Dynamic, 1>;

/// One thread's share of the product: rows [row, row + rows) of the output, columns [column, column + columns).
struct tile {
  std::int64_t row, rows, column, columns;
};

void multiply_tile(const float* x, const float* weights, std::int64_t in, std::int64_t width, const tile& part, float* out, bool add) {
  const Eigen::Map<const matrix> w(weights + part.column * in, part.columns, in);
  if (part.rows == 1) {
    const Eigen::Map<const vector> from(x + part.row * in, in);
    Eigen::Map<vector> to(out + part.row * width + part.column, part.columns);
    if (!add) to.setZero();
    to.noalias() += w * from;
    return;
  }
  const Eigen::Map<const matrix> from(x + part.row * in, part.rows, in);
  Eigen::Map<matrix, 0, Eigen::OuterStride<>> to(out + part.row * width + part.column, part.rows, part.columns,
                                                 Eigen::OuterStride<>(width));
  if (add) {
    to.noalias() += from * w.transpose();
  } else {
    to.noalias() = from * w.transpose();
  }
}

}  // namespace

void multiply(const kvx::host& exec, const float* x, std::int64_t n, const float* weights, std::int64_t in, std::int64_t rows, float* out,
              bool add) {
  // Many tokens: each thread takes some of them. Few tokens: each thread takes some of the weights, which are then read once.
  if (n >= std::int64_t{16} * exec.threads) {
    for_each_share(exec, n, [&](auto first, auto last) { multiply_tile(x, weights, in, rows, {first, last - first, 0, rows}, out, add); });
  } else {
    for_each_share(exec, rows, [&](auto first, auto last) { multiply_tile(x, weights, in, rows, {0, n, first, last - first}, out, add); });
  }
}

void silu_times(const kvx::host& exec, float* gate, const float* up, std::int64_t count) {
  for_each_share(exec, count, [&](std::int64_t first, std::int64_t last) {
    Eigen::Map<Eigen::ArrayXf> g(gate + first, last - first);
    const Eigen::Map<const Eigen::ArrayXf> u(up + first, last - first);
    g = g / (1.0F + (-g).exp()) * u;
  });
}

double product_speed(const kvx::host& exec, std::int64_t size) {
  const auto count = static_cast<std::size_t>(size * size);
  const std::vector<float> a(count, 1.5F);
  const std::vector<float> b(count, 0.25F);
  std::vector<float> product(count);
  double best = 1e30;
  for (int run = 0; run < 5; ++run) {
    const auto start = std::chrono::steady_clock::now();
    multiply(exec, a.data(), size, b.data(), size, size, product.data(), false);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return 2.0 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size) / best;
}

}  // namespace decode_loop
