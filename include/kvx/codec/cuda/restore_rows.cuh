#pragma once
// The bytes of chunks to rows in pages on the device: opened together, restored some layers and tokens at a time.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/codec/cuda/chunk_run.cuh>
#include <kvx/codec/cuda/decode_coefficients.cuh>
#include <kvx/codec/cuda/span_rows.cuh>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/transform/cuda/split_halves.cuh>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// Undoes the entropy coding of chunks, of any runs and models.
///
/// shapes      chunks whose coefficients lie in the decode_run_memory of their run; E the element of chunks of rows
/// cost        see decode_coefficients
/// errors      likewise; chunks of rows are ok, and have no coefficients
template <element E, class T, class Q, class C>
void open_chunk(const device& exec, const chain<T, Q, C>& codec, const device_chunks& chunks, chunk_result* results,
                call_site where = call_site::here()) {
  decode_coefficients(exec, codec, chunks, results, sizeof(E), where);
}

/// What the products of an opened run take; once, behind open_chunk and before restore_rows.
///
/// shapes      features: as many as restore_rows will ask for at once
inline void prepare_restore(const device& exec, const span_on_device& span, const chunk_run& run, std::int64_t features, std::byte* memory,
                            call_site where = call_site::here()) {
  require_run(run, span.view(), where);
  const decode_run_memory m(run, span.view(), features, memory);
  m.foretold.prepare(exec, run, span.view());
  split_columns(exec, m.coefficients, run.tokens, run.components, run.tokens, m.x, m.factors);
}

/// Which rows of a run: heads of the span, of all its layers counted through, and tokens.
struct restored_part {
  std::int64_t first_head = 0;
  std::int64_t heads = 0;
  std::int64_t first_token = 0;
  std::int64_t tokens = 0;
};

inline constexpr int restore_threads = 128;

/// The row of one head and token by a warp: of the product, weighted back, centred back, its key turned again; or of the bytes.
///
/// products    (tokens from `from` on, heads dim)
template <element E, int Threads>
__global__ void __launch_bounds__(Threads)
    restore_rows_kernel(device_span_model model, chunk_run run, span_rows<E> rows, device_span_turns turns, restored_part part,
                        foretold_rows foretold, const float* products, std::int64_t from, const float* factors, const device_chunk* list,
                        const chunk_result* results) {
  const std::int64_t unit = static_cast<std::int64_t>(blockIdx.x) * (Threads / warp_lanes) + warp_of_thread();
  if (unit >= part.heads * part.tokens) return;
  const std::int64_t t = part.first_token + unit / part.heads, h = unit % part.heads;
  const auto head = static_cast<std::int32_t>(part.first_head + h);
  const std::uint32_t chunk = static_cast<std::uint32_t>(t) / static_cast<std::uint32_t>(run.chunk_tokens);
  const chunk_result result = results[chunk];
  if (result.code != status::code::ok) return;
  E* const to = rows.row(t, head);
  if (result.kind == chunk_kind::rows) {
    const E* const stored = reinterpret_cast<const E*>(list[chunk].bytes + sizeof(chunk_header)) +
                            t % run.chunk_tokens * model.basis.features + std::int64_t{head} * rows.dim;
    for (int d = lane_of_thread(); d < rows.dim; d += warp_lanes) to[d] = stored[d];
    return;
  }
  const float factor = factors[t];
  const float* const product = products + ((t - from) * part.heads + h) * rows.dim;
  const device_turns turn = turns.of(head);
  const auto feature = [&](int d) {
    const std::int64_t f = std::int64_t{head} * rows.dim + d;
    const float x = product[d] * factor;
    return (model.basis.weights != nullptr ? x / model.basis.weights[f] : x) + model.basis.mean[f] +
           foretold.at(t - from, part.heads * rows.dim, h * rows.dim + d, t);
  };
  for (int d = lane_of_thread(); d < rows.dim; d += warp_lanes) to[d] = round_to<E>(turned(turn, t, d, true, feature));
}

/// Rows of an opened run: some layers, so that a model may begin before the others are there, and some tokens, so that a prefix may be cut
/// anywhere.
///
/// shapes      rows of the span, token 0 of the run at rows.first; turns of the run's tokens; list and results those of the run's chunks;
///             memory that of prepare_restore for part.heads * dim features or more. Calls that share it follow each other on one stream
/// exactness   chunks of rows to the bit; others within the product's rounding of the host's, then rounded to E
/// cost        two launches, three where rows are foretold; the product takes 2 tokens features components operations for each of two
///             halves; capturable
/// errors      rows of chunks whose results are not ok stay as they are. usage_error: shapes
template <element E>
void restore_rows(const device& exec, const half_product& product, const span_on_device& span, const chunk_run& run,
                  const span_rows<E>& rows, const device_span_turns& turns, const restored_part& part, std::int64_t features,
                  const device_chunk* list, const chunk_result* results, std::byte* memory, call_site where = call_site::here()) {
  const device_span_model model = model_of(span, run);
  require_run(run, model, where);
  require(rows.dim > 0 && rows.heads > 0 && model.basis.features % (std::int64_t{rows.heads} * rows.dim) == 0,
          "restore_rows: features are whole layers of heads", where);
  require(rows.page_tokens > 0, "restore_rows: pages have tokens", where);
  require_range("restore_rows: position of the first token", rows.first, 0, INT32_MAX - run.tokens, where);
  require_range("restore_rows: first head", part.first_head, 0, model.basis.features / rows.dim, where);
  require_range("restore_rows: heads", part.heads, 0, model.basis.features / rows.dim - part.first_head, where);
  require_range("restore_rows: features", part.heads * rows.dim, 0, features, where);
  require_range("restore_rows: first token", part.first_token, 0, run.tokens, where);
  require_range("restore_rows: tokens", part.tokens, 0, run.tokens - part.first_token, where);
  if (part.tokens == 0 || part.heads == 0) return;
  const decode_run_memory m(run, model, features, memory);
  const std::int64_t from = round_down(part.first_token, 8), count = part.first_token + part.tokens - from;  // x on multiples of 16 bytes
  const std::int64_t width = part.heads * rows.dim;
  product.run(product.context, exec, {half_product::direction::restore, count, width, run.components},
              {m.x.high + from, m.x.low + from, m.x.pitch}, model.basis.basis + part.first_head * rows.dim, model.basis_pitch, m.products,
              width);
  m.foretold.foretell(exec, product, model, part.first_head * rows.dim, width, from, count);
  launch(exec, {grid_of(ceil_div(part.heads * part.tokens, restore_threads / warp_lanes), where), restore_threads},
         restore_rows_kernel<E, restore_threads>, model, run, rows, turns, part, m.foretold, m.products, from, m.factors, list, results);
}

}  // namespace kvx
