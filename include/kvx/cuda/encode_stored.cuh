#pragma once
// Rows in the pages of a device cache to the bytes of chunks on the host.

#include <kvx/backend/cuda/copy_in.cuh>
#include <kvx/backend/cuda/copy_out.cuh>
#include <kvx/backend/cuda/memory.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/codec/cuda/chain.cuh>
#include <kvx/codec/cuda/chunk_run.cuh>
#include <kvx/codec/host/calibrated.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/status.hpp>
#include <kvx/cuda/stored_codec.cuh>
#include <kvx/cuda/stored_rows.cuh>
#include <kvx/stored_blocks.hpp>
#include <kvx/transform/half_product.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvx {

/// Encodes chunks.
///
/// rows_of     block -> rows_on_device of its layers
/// inputs_of   chunk_place -> inputs (tokens, rank) of the tokens from there on; null: nothing is foretold
/// mean_of     chunk_place -> mean (features) of its text; null: the calibration's
/// chunks      result: the bytes of each
/// exactness   see encode_chunk
/// cost        waits for the stream: for what it brings over, and for the chunks. Memory for their rows, coefficients and bytes
template <class Spec, class RowsOf, class InputsOf, class MeanOf>
status encode_stored(const device& exec, const Spec& spec, const spans_on_device& spans, std::span<const stored_block> blocks,
                     std::span<const chunk_place> places, const RowsOf& rows_of, const InputsOf& inputs_of, const MeanOf& mean_of,
                     int log2_step, std::vector<std::vector<std::byte>>& chunks) {
  using E = typename Spec::layout_type::element_type;
  const calibrated_model& model = *spec.codec.model;
  const std::vector<chunks_in_run> in_runs = runs_of(places);
  std::vector<std::int64_t> at;  // (chunks) bytes before the room of each
  std::int64_t room = 0, scratch = 0;
  std::vector<chunk_run> runs;
  const auto span_of = [&](const chunk_place& p) { return static_cast<std::size_t>(blocks[p.block].span); };
  const auto bound_of = [&](const chunk_place& p) {
    return round_up(chunk_bound<E>(p.tokens, model.basis(span_of(p), p.part).features()), 16);
  };
  for (const chunk_place& p : places) {
    at.push_back(room);
    room += bound_of(p);
  }
  std::vector<device_block> inputs, means;
  for (const chunks_in_run& r : in_runs) {
    const span_on_device& span = spans.of(span_of(r.of), r.of.part);
    inputs.push_back(inputs_of_run(exec, inputs_of(r.of), span.view().predictor_rank, r.of.tokens));
    means.push_back(mean_of_run(exec, mean_of(r.of), span.view().basis.features));
    runs.push_back({r.of.tokens, r.chunk_tokens, kept_components(spec.codec.chain, model.model(span_of(r.of), r.of.part), log2_step),
                    reinterpret_cast<const float*>(inputs.back().data()), reinterpret_cast<const float*>(means.back().data())});
    scratch = std::max(scratch, encode_run_memory(spec.codec.chain, runs.back(), span.view(), nullptr).bytes);
  }
  const device_block bytes = allocate(exec, room), memory = allocate(exec, scratch);
  const auto list_bytes = static_cast<std::int64_t>(places.size() * sizeof(device_chunk)),
             result_bytes = static_cast<std::int64_t>(places.size() * sizeof(chunk_result));
  const device_block list_there = allocate(exec, list_bytes), results_there = allocate(exec, result_bytes);
  std::vector<device_chunk> list;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const span_on_device& span = spans.of(span_of(in_runs[i].of), in_runs[i].of.part);
    const encode_run_memory m(spec.codec.chain, runs[i], span.view(), memory.data());
    for (const device_chunk& c : list_of(runs[i], span, m.coefficients, m.factors, [&](std::int64_t chunk) {
           const std::size_t number = in_runs[i].first + static_cast<std::size_t>(chunk);
           return std::span(bytes.data() + at[number], static_cast<std::size_t>(bound_of(places[number])));
         }))
      list.push_back(c);
  }
  copy_in_and_wait(exec, list_there.data(), list.data(), list_bytes);
  const half_product product = device_products(spec.codec);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const chunks_in_run& r = in_runs[i];
    const stored_block& block = blocks[r.of.block];
    const turns_of_run turns(exec, model.of(), span_of(r.of), r.of);
    const auto rows = rows_of(r.of.block).template of<const E>(r.of.part, r.of.position, block.first_head, block.heads);
    encode_chunk<typename Spec::codec_type::chain_type, E>(exec, product, spec.codec.chain, spans.of(span_of(r.of), r.of.part), runs[i],
                                                           rows, turns.view(), log2_step,
                                                           reinterpret_cast<const device_chunk*>(list_there.data()) + r.first,
                                                           memory.data(), reinterpret_cast<chunk_result*>(results_there.data()) + r.first);
  }
  std::vector<chunk_result> results(places.size());
  copy_out_and_wait(exec, results.data(), results_there.data(), result_bytes);
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].code != status::code::ok) return {results[i].code, "chunk"};
    chunks[i].resize(static_cast<std::size_t>(results[i].bytes));
    copy_out(exec, chunks[i].data(), bytes.data() + at[i], results[i].bytes);
  }
  wait_for(exec);
  return {};
}

}  // namespace kvx
