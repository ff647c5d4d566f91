#pragma once
// Consecutive chunks of one model, which the matrix products take at once: their shape, their memory, their list.

#include <kvx/backend/device.cuh>
#include <kvx/codec/cuda/device_chunk.cuh>
#include <kvx/codec/cuda/encode_coefficients.cuh>
#include <kvx/codec/cuda/span_model.cuh>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/transform/cuda/split_halves.cuh>
#include <kvx/transform/half_product.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvx {

/// Tokens of a sequence that follow each other, in chunks of `chunk_tokens` but the last.
///
/// components  rows of their coefficients: what the step or the plan keeps, or more
/// inputs      (predictor_rank, tokens) of a span whose rows are foretold, in device memory: see predictor_inputs
/// mean        (features) that stands in for the model's, in device memory: that of the text at hand; null: the model's
struct chunk_run {
  std::int64_t tokens = 0;
  std::int64_t chunk_tokens = 0;
  std::int64_t components = 0;
  const float* inputs = nullptr;
  const float* mean = nullptr;

  KVX_HD constexpr std::int64_t chunks() const { return ceil_div(tokens, chunk_tokens); }
};

inline void require_run(const chunk_run& run, const device_span_model& model, call_site where) {
  require_range("codec: tokens of a chunk", run.chunk_tokens, 1, 1 << 20, where);
  require_range("codec: tokens of a run", run.tokens, 0, INT32_MAX, where);
  require_range("codec: components of a run", run.components, 0, model.basis.rank, where);
  require(model.predictor_rank == 0 || run.inputs != nullptr || run.tokens == 0,
          "codec: the rows of the span are foretold from inputs, which are missing", where);
}

/// The model of a run's rows, its mean included.
inline device_span_model model_of(const span_on_device& span, const chunk_run& run) {
  device_span_model m = span.view();
  if (run.mean != nullptr) m.basis.mean = run.mean;
  return m;
}

/// The chunks of a run as a launch takes them; list in device memory.
inline device_chunks chunks_of(const chunk_run& run, const device_span_model& model, const device_chunk* list) {
  return {list, run.chunks(), run.tokens < run.chunk_tokens ? run.tokens : run.chunk_tokens, run.components, model.run_count};
}

/// What is foretold of rows of a run, from one block of memory; without a predictor it is empty.
///
/// inputs      (predictor_rank, tokens rounded up to 8); factors (tokens); rows (tokens, features)
struct foretold_rows {
  two_halves inputs;
  float* factors = nullptr;
  float* rows = nullptr;

  void take(scratch_parts& parts, const chunk_run& run, const device_span_model& model, std::int64_t features) {
    if (model.predictor_rank == 0) return;
    inputs.pitch = round_up(run.tokens, 8);
    inputs.high = parts.take<half>(model.predictor_rank * inputs.pitch);
    inputs.low = parts.take<half>(model.predictor_rank * inputs.pitch);
    factors = parts.take<float>(run.tokens);
    rows = parts.take<float>(run.tokens * features);
  }

  /// Inputs as products take them; once a run.
  void prepare(const device& exec, const chunk_run& run, const device_span_model& model) const {
    if (model.predictor_rank == 0) return;
    split_columns(exec, run.inputs, run.tokens, model.predictor_rank, run.tokens, inputs, factors);
  }

  /// rows (count, width) <- the features [first, first + width) of the tokens from `from` on.
  void foretell(const device& exec, const half_product& product, const device_span_model& model, std::int64_t first, std::int64_t width,
                std::int64_t from, std::int64_t count) const {
    if (model.predictor_rank == 0) return;
    product.run(product.context, exec, {half_product::direction::restore, count, width, model.predictor_rank},
                {inputs.high + from, inputs.low + from, inputs.pitch}, model.outputs + first, model.basis_pitch, rows, width);
  }

  /// Of row i of `width` features, which is token t.
  __device__ __forceinline__ float at(std::int64_t i, std::int64_t width, std::int64_t f, std::int64_t t) const {
    return rows != nullptr ? rows[i * width + f] * factors[t] : 0.0f;
  }
};

/// What encoding a run needs, from one block of memory; without one it counts.
///
/// coefficients (components, tokens); factors (tokens); x (tokens, features)
struct encode_run_memory {
  float* coefficients = nullptr;
  float* factors = nullptr;
  two_halves x;
  foretold_rows foretold;
  std::byte* symbols = nullptr;
  std::int64_t bytes = 0;

  template <class Codec>
  encode_run_memory(const Codec& codec, const chunk_run& run, const device_span_model& model, std::byte* memory) {
    scratch_parts parts{memory, 0};
    coefficients = parts.take<float>(run.components * run.tokens);
    factors = parts.take<float>(run.tokens);
    x.pitch = model.basis_pitch;
    x.high = parts.take<half>(run.tokens * x.pitch);
    x.low = parts.take<half>(run.tokens * x.pitch);
    foretold.take(parts, run, model, model.basis.features);
    symbols = parts.take<std::byte>(encode_coefficients_scratch(codec, chunks_of(run, model, nullptr)));
    bytes = parts.used;
  }
};

/// The same for decoding; products holds the rows of as many features as are restored at once.
///
/// coefficients (components, tokens); x (components, tokens rounded up to 8); factors (tokens); products (tokens, features)
struct decode_run_memory {
  float* coefficients = nullptr;
  float* factors = nullptr;
  two_halves x;
  foretold_rows foretold;
  float* products = nullptr;
  std::int64_t bytes = 0;

  decode_run_memory(const chunk_run& run, const device_span_model& model, std::int64_t features, std::byte* memory) {
    scratch_parts parts{memory, 0};
    coefficients = parts.take<float>(run.components * run.tokens);
    factors = parts.take<float>(run.tokens);
    x.pitch = round_up(run.tokens, 8);
    x.high = parts.take<half>(run.components * x.pitch);
    x.low = parts.take<half>(run.components * x.pitch);
    foretold.take(parts, run, model, features);
    products = parts.take<float>(run.tokens * features);
    bytes = parts.used;
  }
};

/// The chunks of a run, to be brought to device memory.
///
/// bytes_of    i -> span of the device's bytes: of chunk i, or the room for it; on a multiple of 4
/// factors     null where chunks are decoded
template <class BytesOf>
std::vector<device_chunk> list_of(const chunk_run& run, const span_on_device& model, float* coefficients, const float* factors,
                                  const BytesOf& bytes_of) {
  std::vector<device_chunk> list;
  for (std::int64_t i = 0; i < run.chunks(); ++i) {
    const std::int64_t first = i * run.chunk_tokens, left = run.tokens - first;
    const std::span<std::byte> bytes = bytes_of(i);
    list.push_back({model.there(), bytes.data(), static_cast<std::int64_t>(bytes.size()),
                    static_cast<std::int32_t>(left < run.chunk_tokens ? left : run.chunk_tokens), run.components, coefficients + first,
                    run.tokens, factors != nullptr ? factors + first : nullptr});
  }
  return list;
}

}  // namespace kvx
