#pragma once
// The one thing the codec asks of a linear algebra library: a product of two dense float matrices.

#include <cstdint>

namespace kvx {

/// A borrowed product: C = op(A) B, or C += op(A) B.
///
/// shapes      op(A) (m, k), B (k, n), C (m, n), all row-major with pitches in floats; A is stored (k, m) where it is transposed
/// run         may be called by several threads at once, for different C; one call uses one thread
/// context     handed to run as it is; it must outlive every call that takes the struct
struct matrix_product {
  struct shape {
    bool transposed = false;
    bool add = false;
    std::int64_t m = 0, n = 0, k = 0;
  };
  void (*run)(void* context, const shape& s, const float* a, std::int64_t a_pitch, const float* b, std::int64_t b_pitch, float* c,
              std::int64_t c_pitch) = nullptr;
  void* context = nullptr;
};

/// Plain loops, four rows of B at a time: a fraction of what a library does with wide vectors.
inline void plain_product(void*, const matrix_product::shape& s, const float* a, std::int64_t a_pitch, const float* b, std::int64_t b_pitch,
                          float* c, std::int64_t c_pitch) {
  const std::int64_t down = s.transposed ? 1 : a_pitch, across = s.transposed ? a_pitch : 1;
  for (std::int64_t i = 0; i < s.m; ++i) {
    float* const row = c + i * c_pitch;
    if (!s.add) {
      for (std::int64_t j = 0; j < s.n; ++j) row[j] = 0;
    }
    const float* const left = s.k > 0 ? a + i * down : a;
    std::int64_t p = 0;
    for (; p + 4 <= s.k; p += 4) {
      const float x0 = left[p * across], x1 = left[(p + 1) * across], x2 = left[(p + 2) * across], x3 = left[(p + 3) * across];
      const float* const y = b + p * b_pitch;
      for (std::int64_t j = 0; j < s.n; ++j)
        row[j] += (x0 * y[j] + x1 * y[b_pitch + j]) + (x2 * y[2 * b_pitch + j] + x3 * y[3 * b_pitch + j]);
    }
    for (; p < s.k; ++p) {
      const float x = left[p * across];
      for (std::int64_t j = 0; j < s.n; ++j) row[j] += x * b[p * b_pitch + j];
    }
  }
}

/// The product that needs no library. Link one and hand its product in: eigen_product.hpp shows how.
inline matrix_product plain_products() { return {plain_product, nullptr}; }

}  // namespace kvx
