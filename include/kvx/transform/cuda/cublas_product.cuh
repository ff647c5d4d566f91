#pragma once
// The product of half_product.hpp by cuBLAS: opt-in, link CUDA::cublas. Empty where its header is not installed.

#if __has_include(<cublas_v2.h>)
#include <kvx/backend/cuda/memory.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/check.hpp>
#include <kvx/transform/half_product.hpp>

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace kvx {

/// context     a cublasHandle_t of the device of `exec`; its stream becomes that of `exec`
/// errors      usage_error: dims or pitches over 31 bits; std::runtime_error with cuBLAS's number
inline void cublas_product(void* context, const device& exec, const half_product::shape& s, const two_halves& x, const half* b,
                           std::int64_t b_pitch, float* out, std::int64_t out_pitch) {
  if (s.m == 0 || s.n == 0) return;
  const current_device here(exec.ordinal);
  const auto handle = static_cast<cublasHandle_t>(context);
  const auto done = [](const char* call, cublasStatus_t status) {
    if (status != CUBLAS_STATUS_SUCCESS) throw std::runtime_error(joined({call, ": cuBLAS status ", std::to_string(status)}));
  };
  const auto narrow = [](std::int64_t size) {
    require_range("cublas_product: size", size, 0, INT32_MAX, call_site::here());
    return static_cast<int>(size);
  };
  done("cublasSetStream", cublasSetStream(handle, exec.stream));
  // cuBLAS counts by columns: its matrices are the transposes of ours.
  const bool restores = s.way == half_product::direction::restore;
  for (const half* const part : {x.high, x.low}) {
    const float one = 1, beta = part == x.high ? 0.0f : 1.0f;
    if (restores) {
      done("cublasGemmEx",
           cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_T, narrow(s.n), narrow(s.m), narrow(s.k), &one, b, CUDA_R_16F, narrow(b_pitch), part,
                        CUDA_R_16F, narrow(x.pitch), &beta, out, CUDA_R_32F, narrow(out_pitch), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    } else {
      done("cublasGemmEx",
           cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, narrow(s.m), narrow(s.n), narrow(s.k), &one, part, CUDA_R_16F, narrow(x.pitch), b,
                        CUDA_R_16F, narrow(b_pitch), &beta, out, CUDA_R_32F, narrow(out_pitch), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    }
  }
}

/// cuBLAS's product. The handle is the caller's, and serves one stream at a time.
inline half_product cublas_products(cublasHandle_t handle) { return {cublas_product, handle}; }

}  // namespace kvx
#endif
