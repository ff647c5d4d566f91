#pragma once
// What a call of CUDA's runtime reports, as an exception that names the call and the caller's line.

#include <kvx/core/check.hpp>

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace kvx {

/// A call of the runtime that failed. An error of memory leaves the device usable; a kernel that failed does not (CUDA's sticky errors).
class cuda_error : public std::runtime_error {
 public:
  cuda_error(const char* call, cudaError_t code, call_site where)
      : std::runtime_error(joined({where.file, ":", std::to_string(where.line), ": ", call, ": ", cudaGetErrorString(code)})),
        code_(code) {}
  cudaError_t code() const noexcept { return code_; }

 private:
  cudaError_t code_;
};

/// Throws unless the call succeeded, and clears the error that the runtime remembers: it shall not surface in an unrelated call.
inline void check(const char* call, cudaError_t code, call_site where = call_site::here()) {
  if (code == cudaSuccess) return;
  (void)cudaGetLastError();
  throw cuda_error(call, code, where);
}

}  // namespace kvx
