#pragma once
// The matrix product of the loop, and the product it is measured by; Eigen does both.

#include <kvx/backend/host.hpp>

#include <cstdint>

namespace decode_loop {

/// out = x weights^T on all threads of `exec`, or out += with `add`.
///
/// shapes      x (n, in), weights (rows, in), out (n, rows); row-major, dense
/// cost        2 n in rows operations; one token (n = 1) reads the weights once, at the memory's speed
/// exactness   float; the same bits whatever the number of threads for n = 1, else within rounding
void multiply(const kvx::host& exec, const float* x, std::int64_t n, const float* weights, std::int64_t in, std::int64_t rows, float* out,
              bool add);

/// Operations per second of a product of two square matrices of `size`, all threads: the best of a few runs.
double product_speed(const kvx::host& exec, std::int64_t size);

}  // namespace decode_loop
