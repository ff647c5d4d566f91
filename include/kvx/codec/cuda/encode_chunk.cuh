#pragma once
// Rows in pages to the bytes of chunks on the device.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/codec/cuda/chunk_run.cuh>
#include <kvx/codec/cuda/encode_coefficients.cuh>
#include <kvx/codec/cuda/span_rows.cuh>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/math.hpp>
#include <kvx/transform/cuda/split_halves.cuh>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

inline constexpr int stage_threads = 256, store_threads = 128;

/// The features of one token, its keys turned back, centred and weighted, as halves; by a block.
///
/// factors     NaN where the token holds NaN or infinity, which the quantisers find unfit
template <element E, int Threads>
__global__ void __launch_bounds__(Threads) stage_features_kernel(device_span_model model, span_rows<const E> rows, device_span_turns turns,
                                                                 foretold_rows foretold, two_halves x, float* factors) {
  __shared__ block_scratch<float, Threads> scratch;
  const std::int64_t t = blockIdx.x, features = model.basis.features;
  const auto heads = static_cast<std::int32_t>(features / rows.dim);
  const auto for_each_feature = [&](const auto& each) {
    for (std::int32_t head = warp_of_thread(); head < heads; head += Threads / warp_lanes) {
      const E* const key = rows.row(t, head);
      const device_turns turn = turns.of(head);
      for (int d = lane_of_thread(); d < rows.dim; d += warp_lanes) {
        const std::int64_t f = std::int64_t{head} * rows.dim + d;
        const float value = turned(turn, t, d, false, [&](int i) { return to_float(key[i]); }) - foretold.at(t, features, f, t);
        each(f, (value - model.basis.mean[f]) * (model.basis.weights != nullptr ? model.basis.weights[f] : 1.0f));
      }
    }
  };
  float largest = 0;
  for_each_feature([&](std::int64_t, float value) {
    const float magnitude = value - value == 0 ? (value < 0 ? -value : value) : infinity;
    largest = magnitude > largest ? magnitude : largest;
  });
  largest = block_reduce<Threads>(
      largest, [](float a, float b) { return a < b ? b : a; }, scratch);
  const int e = exponent_of_token(largest);
  if (threadIdx.x == 0) factors[t] = largest < infinity ? power_of_exponent(e) : quiet_nan;
  for_each_feature([&](std::int64_t f, float value) { put_halves(x, t * x.pitch + f, value, e); });
  for (std::int64_t f = features + threadIdx.x; f < x.pitch; f += Threads) put_halves(x, t * x.pitch + f, 0, 0);
}

/// The rows of chunks that are stored as such, behind their headers; a block a token.
template <element E, int Threads>
__global__ void __launch_bounds__(Threads) store_rows_kernel(chunk_run run, std::int64_t features, span_rows<const E> rows,
                                                             const device_chunk* list, const chunk_result* results) {
  const std::int64_t t = blockIdx.x, chunk = t / run.chunk_tokens;
  if (results[chunk].code != status::code::ok || results[chunk].kind != chunk_kind::rows) return;
  E* const to = reinterpret_cast<E*>(list[chunk].bytes + sizeof(chunk_header)) + t % run.chunk_tokens * features;
  for (std::int32_t head = warp_of_thread(); head * rows.dim < features; head += Threads / warp_lanes) {
    const E* const from = rows.row(t, head);
    for (int d = lane_of_thread(); d < rows.dim; d += warp_lanes) to[std::int64_t{head} * rows.dim + d] = from[d];
  }
}

/// Rows of a run to the bytes of its chunks.
///
/// shapes      rows of all heads of the span, the run's tokens; turns of the same tokens; list from list_of over the coefficients and
///             factors of encode_run_memory over the same memory, with chunk_bound<E> bytes a chunk, or fewer where no_space is an answer;
///             list and results (chunks) in device memory
/// components  of the run: what the codec keeps under the step (kept_components of the host)
/// exactness   the products decide, within float precision of the host's; from the coefficients on, see encode_coefficients
/// cost        the product, 2 tokens features components operations for each of two halves, is nearly all of it; five launches, one more
///             for a plan, two where rows are foretold; capturable
/// errors      in results: no_space alone; NaN, infinity and what coding would not shorten are stored as rows. usage_error: shapes
template <class Codec, element E>
void encode_chunk(const device& exec, const half_product& product, const Codec& codec, const span_on_device& span, const chunk_run& run,
                  const span_rows<const E>& rows, const device_span_turns& turns, int log2_step, const device_chunk* list,
                  std::byte* memory, chunk_result* results, call_site where = call_site::here()) {
  const device_span_model model = model_of(span, run);
  require_run(run, model, where);
  require(rows.dim > 0 && rows.heads > 0 && model.basis.features % (std::int64_t{rows.heads} * rows.dim) == 0,
          "encode_chunk: features are whole layers of heads", where);
  require(rows.page_tokens > 0, "encode_chunk: pages have tokens", where);
  require_range("encode_chunk: position of the first token", rows.first, 0, INT32_MAX - run.tokens, where);
  if (run.tokens == 0) return;
  const encode_run_memory m(codec, run, model, memory);
  m.foretold.prepare(exec, run, model);
  m.foretold.foretell(exec, product, model, 0, model.basis.features, 0, run.tokens);
  launch(exec, {grid_of(run.tokens, where), stage_threads}, stage_features_kernel<E, stage_threads>, model, rows, turns, m.foretold, m.x,
         m.factors);
  product.run(product.context, exec, {half_product::direction::project, run.tokens, run.components, model.basis.features}, m.x,
              model.basis.basis, model.basis_pitch, m.coefficients, run.tokens);
  encode_coefficients(exec, codec, chunks_of(run, model, list), log2_step, m.symbols, results, sizeof(E), where);
  launch(exec, {grid_of(run.tokens, where), store_threads}, store_rows_kernel<E, store_threads>, run, model.basis.features, rows, list,
         results);
}

}  // namespace kvx
