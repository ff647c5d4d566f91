#pragma once
// What Eigen does for the loop: matrix products, the activation of the feed-forward block, and the product the loop is measured by.

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

/// gate <- silu(gate) up, element by element, silu(x) = x / (1 + exp(-x)); on all threads of `exec`.
void silu_times(const kvx::host& exec, float* gate, const float* up, std::int64_t count);

/// Operations per second of a product of two square matrices of `size`, all threads: the best of a few runs.
double product_speed(const kvx::host& exec, std::int64_t size);

}  // namespace decode_loop
