// What host and device share, called from a kernel: compiled by nvcc for each architecture, with its warnings as errors.

#include <kvx/kvx.hpp>
#include <kvx/transform/hadamard.hpp>

__global__ void shared_cores(float* x, kvx::softmax_state* states) {
  kvx::hadamard(x, 96);
  const kvx::merge_weights w = kvx::merge(states[0], states[1]);
  x[0] = w(x[0], x[1]) + states[0].lse();
}
