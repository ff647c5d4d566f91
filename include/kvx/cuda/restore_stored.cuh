#pragma once
// The bytes of a block's chunks to rows in the pages of a device cache, layer by layer.

#include <kvx/attend/rows.hpp>
#include <kvx/backend/cuda/copy_in.cuh>
#include <kvx/backend/cuda/copy_out.cuh>
#include <kvx/backend/cuda/memory.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/codec/cuda/chain.cuh>
#include <kvx/codec/cuda/chunk_run.cuh>
#include <kvx/core/bits.hpp>
#include <kvx/core/status.hpp>
#include <kvx/cuda/stored_codec.cuh>
#include <kvx/cuda/stored_rows.cuh>
#include <kvx/stored_access.hpp>
#include <kvx/stored_blocks.hpp>
#include <kvx/transform/half_product.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace kvx {

/// Chunks of one block whose entropy coding is undone. Moves.
///
/// use         open once, then `restore` layers; chunks of both parts
/// exactness   see restore_rows
/// cost        memory of the device for bytes, coefficients and the products of one layer
template <class Spec>
class opened_chunks {
 public:
  using E = typename Spec::layout_type::element_type;

  /// chunks      inputs (tokens, rank) lie one after the other, as chunks of a part do; all of a part have one mean
  /// errors      of bytes; nothing can be restored then
  status open(const device& exec, const Spec& spec, const spans_on_device& spans, const stored_block& block,
              std::span<const stored_chunk> stored) {
    const auto span_number = static_cast<std::size_t>(block.span);
    heads_ = block.heads;
    product_ = device_products(spec.codec);
    std::vector<std::int64_t> at;  // (chunks)
    std::int64_t room = 0;
    std::vector<chunk_place> places;
    for (const stored_chunk& c : stored) {
      places.push_back(c.place);
      at.push_back(room);
      room += round_up(std::ssize(c.bytes), 16);
    }
    std::vector<std::byte> all(static_cast<std::size_t>(room));
    for (std::size_t i = 0; i < stored.size(); ++i) std::memcpy(all.data() + at[i], stored[i].bytes.data(), stored[i].bytes.size());
    bytes_ = allocate(exec, room);
    copy_in_and_wait(exec, bytes_.data(), all.data(), room);
    std::vector<device_chunk> list;
    device_chunks chunks;
    for (const chunks_in_run& in : runs_of(places)) {
      const span_on_device& span = spans.of(span_number, in.of.part);
      opened_run& r = runs_.emplace_back();
      r.in = in;
      r.span = &span;
      r.turns = turns_of_run(exec, spec.codec.model->of(), span_number, in.of);
      r.inputs = inputs_of_run(exec, stored[in.first].inputs, span.view().predictor_rank, in.of.tokens);
      r.mean = mean_of_run(exec, stored[in.first].mean, span.view().basis.features);
      r.run = {in.of.tokens, in.chunk_tokens, 0, reinterpret_cast<const float*>(r.inputs.data()),
               reinterpret_cast<const float*>(r.mean.data())};
      for (std::size_t i = in.first; i < in.first + in.count; ++i) {  // every chunk says how many components it has
        chunk_header header;
        if (stored[i].bytes.size() < sizeof header) return {status::code::truncated, "chunk"};
        std::memcpy(&header, stored[i].bytes.data(), sizeof header);
        r.run.components = std::max<std::int64_t>(r.run.components, header.components);
      }
      if (r.run.components > span.view().basis.rank) return {status::code::corrupt, "chunk: components"};
      r.memory = allocate(exec, decode_run_memory(r.run, span.view(), features(in.of.part), nullptr).bytes);
      const decode_run_memory m(r.run, span.view(), features(in.of.part), r.memory.data());
      for (const device_chunk& c : list_of(r.run, span, m.coefficients, nullptr, [&](std::int64_t chunk) {
             const std::size_t number = in.first + static_cast<std::size_t>(chunk);
             return std::span(bytes_.data() + at[number], stored[number].bytes.size());
           }))
        list.push_back(c);
      chunks.most_tokens = std::max(chunks.most_tokens, std::min(in.of.tokens, in.chunk_tokens));
      chunks.most_components = std::max(chunks.most_components, r.run.components);
      chunks.most_runs = std::max<std::int64_t>(chunks.most_runs, span.view().run_count);
    }
    const auto list_bytes = static_cast<std::int64_t>(list.size() * sizeof(device_chunk));
    list_ = allocate(exec, list_bytes);
    copy_in_and_wait(exec, list_.data(), list.data(), list_bytes);
    chunks.list = reinterpret_cast<const device_chunk*>(list_.data());
    chunks.count = std::ssize(list);
    const auto result_bytes = static_cast<std::int64_t>(list.size() * sizeof(chunk_result));
    results_ = allocate(exec, result_bytes);
    open_chunk<E>(exec, spec.codec.chain, chunks, reinterpret_cast<chunk_result*>(results_.data()));
    std::vector<chunk_result> results(list.size());
    copy_out_and_wait(exec, results.data(), results_.data(), result_bytes);
    for (const chunk_result& r : results) {
      if (r.code != status::code::ok) return {r.code, "chunk"};
    }
    for (const opened_run& r : runs_) prepare_restore(exec, *r.span, r.run, features(r.in.of.part), r.memory.data());
    return {};
  }

  bool empty() const { return runs_.empty(); }

  /// Rows of the i-th layer of the block to their pages, of tokens in some of the ranges.
  ///
  /// rows        of all layers of the block
  void restore(const device& exec, const rows_on_device<Spec>& rows, std::int64_t i, std::int32_t first_head,
               std::span<const token_range> ranges) const {
    for (const opened_run& r : runs_) {
      for (const token_range& kept : ranges) {
        const std::int64_t low = std::max(kept.begin, r.in.of.position), high = std::min(kept.end, r.in.of.position + r.in.of.tokens);
        if (low >= high) continue;
        restore_rows<E>(exec, product_, *r.span, r.run, rows.template of<E>(r.in.of.part, r.in.of.position, first_head, heads_),
                        r.turns.view(), {i * heads_, heads_, low - r.in.of.position, high - low}, features(r.in.of.part),
                        reinterpret_cast<const device_chunk*>(list_.data()) + r.in.first,
                        reinterpret_cast<const chunk_result*>(results_.data()) + r.in.first, r.memory.data());
      }
    }
  }

 private:
  struct opened_run {
    chunks_in_run in;
    const span_on_device* span = nullptr;
    chunk_run run;
    turns_of_run turns;
    device_block inputs, mean, memory;
  };
  std::int64_t features(row_part part) const {
    constexpr page_shape shape = Spec::layout_type::shape;
    return heads_ * (part == row_part::key ? shape.key_dim : shape.value_dim);
  }

  std::int32_t heads_ = 0;
  half_product product_;
  std::vector<opened_run> runs_;
  device_block bytes_, list_, results_;
};

}  // namespace kvx
