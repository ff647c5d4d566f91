#pragma once
// What ids of tokens foretell of rows, on the device: inputs of the predictor from embeddings.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/copy_in.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/codec/cuda/device_chunk.cuh>
#include <kvx/codec/token_predictor.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/transform/cuda/split_halves.cuh>
#include <kvx/transform/half_product.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvx {

/// token_predictor in device memory. Moves.
///
/// cost        the bytes of its inputs; waits for its copy: not for a stream that is captured
class predictor_on_device {
 public:
  predictor_on_device(const device& exec, const token_predictor& p, call_site where = call_site::here())
      : embedding_(p.embedding), rank_(p.rank), pitch_(round_up(2 * p.embedding, 8)) {
    std::vector<half> turned(static_cast<std::size_t>(rank_ * pitch_));  // (rank, 2 E)
    for (std::int64_t r = 0; r < rank_; ++r) {
      for (std::int64_t i = 0; i < 2 * embedding_; ++i)
        turned[static_cast<std::size_t>(r * pitch_ + i)] = p.inputs[static_cast<std::size_t>(i * rank_ + r)];
    }
    const auto bytes = static_cast<std::int64_t>(turned.size() * sizeof(half));
    memory_ = allocate(exec, bytes);
    copy_in_and_wait(exec, memory_.data(), turned.data(), bytes, where);
  }
  std::int64_t embedding() const { return embedding_; }
  std::int64_t rank() const { return rank_; }
  std::int64_t pitch() const { return pitch_; }
  const half* inputs() const { return reinterpret_cast<const half*>(memory_.data()); }

 private:
  std::int64_t embedding_, rank_, pitch_;
  device_block memory_;
};

/// The normed embeddings of a token and of the one before it as halves, by a block; embedding null: zeros.
///
/// exactness   sums of squares in double, in a fixed order
template <int Threads>
__global__ void __launch_bounds__(Threads)
    stage_embeddings_kernel(const float* embeddings, std::int64_t width, bool first, two_halves z, float* factors) {
  __shared__ block_scratch<double, Threads> sums;
  __shared__ block_scratch<float, Threads> maxima;
  const std::int64_t t = blockIdx.x;
  float scales[2] = {}, largest = 0;
  for (int side = 0; side < 2; ++side) {  // the token, the one before it
    const std::int64_t row = t + 1 - side;
    if (first && row == 0) continue;
    double sum = 0;
    float most = 0;
    for (std::int64_t i = threadIdx.x; i < width; i += Threads) {
      const float x = embeddings[row * width + i], magnitude = x < 0 ? -x : x;
      sum += static_cast<double>(x) * static_cast<double>(x);
      most = magnitude > most ? magnitude : most;
    }
    sum = block_reduce<Threads>(
        sum, [](double a, double b) { return a + b; }, sums);
    most = block_reduce<Threads>(
        most, [](float a, float b) { return a < b ? b : a; }, maxima);
    scales[side] = sum > 0 ? static_cast<float>(1 / sqrt(sum / static_cast<double>(width))) : 0.0f;
    largest = most * scales[side] > largest ? most * scales[side] : largest;
  }
  const int e = exponent_of_token(largest);
  if (threadIdx.x == 0) factors[t] = power_of_exponent(e);
  for (std::int64_t i = threadIdx.x; i < z.pitch; i += Threads) {
    const int side = i < width ? 0 : 1;
    const std::int64_t row = t + 1 - side, at = i - side * width;
    const bool there = at < width && scales[side] > 0;
    put_halves(z, t * z.pitch + i, there ? embeddings[row * width + at] * scales[side] : 0.0f, e);
  }
}

template <int Threads>
__global__ void __launch_bounds__(Threads) scale_columns_kernel(float* x, std::int64_t columns, std::int64_t count, const float* factors) {
  const std::int64_t i = std::int64_t{blockIdx.x} * Threads + static_cast<int>(threadIdx.x);
  if (i < count) x[i] *= factors[i % columns];
}

/// Bytes of scratch of predictor_inputs.
inline std::int64_t predictor_inputs_scratch(const predictor_on_device& p, std::int64_t tokens) {
  scratch_parts parts;
  (void)parts.take<half>(tokens * p.pitch());
  (void)parts.take<half>(tokens * p.pitch());
  (void)parts.take<float>(tokens);
  return parts.used;
}

/// Inputs of a run of tokens, for chunk_run::inputs of every span of its K, or V.
///
/// shapes      embeddings (tokens + 1, E) as the model holds them, from the token before the first one on; `first`: there is none before,
///             and its place is not read; out (rank, tokens); all in device memory
/// exactness   within the rounding of floats of the host's
/// cost        three launches; the product, 4 tokens E rank operations for each of two halves; capturable
inline void predictor_inputs(const device& exec, const half_product& product, const predictor_on_device& p, const float* embeddings,
                             std::int64_t tokens, bool first, std::byte* scratch, float* out, call_site where = call_site::here()) {
  constexpr int threads = 128;
  require_range("predictor_inputs: tokens", tokens, 0, INT32_MAX, where);
  scratch_parts parts{scratch, 0};
  two_halves z;
  z.pitch = p.pitch();
  z.high = parts.take<half>(tokens * z.pitch);
  z.low = parts.take<half>(tokens * z.pitch);
  float* const factors = parts.take<float>(tokens);
  launch(exec, {grid_of(tokens, where), threads}, stage_embeddings_kernel<threads>, embeddings, p.embedding(), first, z, factors);
  product.run(product.context, exec, {half_product::direction::project, tokens, p.rank(), 2 * p.embedding()}, z, p.inputs(), p.pitch(), out,
              tokens);
  const std::int64_t count = p.rank() * tokens;
  launch(exec, {grid_of(ceil_div(count, threads), where), threads}, scale_columns_kernel<threads>, out, tokens, count, factors);
}

}  // namespace kvx
