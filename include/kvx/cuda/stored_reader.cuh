#pragma once
// What saving reads of a sequence in a cache on the device: chunks made there, rows, columns and what was learned brought to the host.

#include <kvx/backend/cuda/copy_in.cuh>
#include <kvx/backend/cuda/copy_out.cuh>
#include <kvx/backend/cuda/memory.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/cache_parts.hpp>
#include <kvx/codec/cuda/dense_rows.cuh>
#include <kvx/codec/cuda/sum_rows.cuh>
#include <kvx/core/digest.hpp>
#include <kvx/core/status.hpp>
#include <kvx/cuda/device_runner.cuh>
#include <kvx/cuda/encode_stored.cuh>
#include <kvx/cuda/stored_balance.cuh>
#include <kvx/cuda/stored_codec.cuh>
#include <kvx/cuda/stored_rows.cuh>
#include <kvx/layout/cuda/dense_blocks.cuh>
#include <kvx/layout/sequence_book.hpp>
#include <kvx/learned_balance.hpp>
#include <kvx/stored_blocks.hpp>
#include <kvx/stored_columns.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace kvx {

/// What saving reads of a sequence in a cache on the device; see host_reader.
///
/// cost        waits for the stream: once for each lot of sections, and for each column of a layer
template <class Spec>
class device_reader {
 public:
  using layout = typename Spec::layout_type;
  using E = typename layout::element_type;
  using codec = typename Spec::codec_type;
  static constexpr bool encodes = coded_on_device<codec>;

  device_reader(const device& exec, const cache_parts<Spec>& of, const device_runner<Spec>& runner, const sequence_book::slot& s)
      : exec_(exec), of_(of), runner_(runner), slot_(s) {
    runner.hold_encoded(exec);
  }

  /// Chunks are made on the device, where it can; rows are brought to the host.
  template <class Inputs, class Means>
  status fetch(std::span<const stored_block> blocks, std::span<const stored_section> sections, const Inputs& inputs, const Means& means,
               std::int64_t first, int log2_step, bool chunks) {
    chunks_.assign(sections.size(), {});
    if constexpr (encodes) {
      const status encoded = chunks ? encode(blocks, sections, inputs, means, first, log2_step) : status{};
      if (!encoded.ok()) return encoded;
    }
    bring_rows(blocks, sections);
    return {};
  }

  /// Sums are the device's where it makes the chunks; else rows are brought to the host.
  template <class Sums>
  status sum(std::span<const stored_block> blocks, std::span<const stored_section> sections, std::span<Sums> sums) {
    chunks_.assign(sections.size(), {});
    const std::size_t number = sections.front().block;
    const stored_block& block = blocks[number];
    if (!lies_together(of_, block)) {
      bring_rows(blocks, sections);
      return {};
    }
    std::vector<chunk_place> places;
    std::vector<std::size_t> numbers;
    find_coded(blocks, sections, places, numbers);
    find_runs(block, number);
    const auto span = static_cast<std::size_t>(block.span);
    for (const chunks_in_run& r : runs_of(places)) {
      const std::int64_t features = features_of(block, r.of.part), count = static_cast<std::int64_t>(r.count);
      const std::int64_t bytes = count * features * static_cast<std::int64_t>(sizeof(double));
      const device_block there = allocate(exec_, bytes);
      const turns_of_run turns(exec_, of_.spec.codec.model->of(), span, r.of);
      sum_rows<E>(exec_, runs_.front().rows.template of<const E>(r.of.part, r.of.position, block.first_head, block.heads), turns.view(),
                  features, r.of.tokens, r.chunk_tokens, reinterpret_cast<double*>(there.data()));
      std::vector<double> all(static_cast<std::size_t>(count * features));
      copy_out_and_wait(exec_, all.data(), there.data(), bytes);
      for (std::size_t i = 0; i < r.count; ++i) {
        const auto* const from = all.data() + static_cast<std::int64_t>(i) * features;
        sums[numbers[r.first + i]].rows.assign(from, from + features);
      }
    }
    return {};
  }

  /// Whether a section was made into a chunk, and the chunk.
  bool encoded(std::size_t number, std::vector<std::byte>& out) {
    if (chunks_[number].empty()) return false;
    out = std::move(chunks_[number]);
    return true;
  }

  std::span<const E> rows(std::size_t number, const stored_block& block, const stored_section& s, std::vector<E>&) const {
    return std::span(fetched_).subspan(static_cast<std::size_t>(offsets_[number]),
                                       static_cast<std::size_t>(s.range.count * features_of(block, s.part)));
  }

  std::vector<std::byte> column(const digest& name, int layer, std::size_t c, const column_range& range) const {
    const auto& place = of_.layer(layer);
    const std::int64_t each = cache_parts<Spec>::columns[c].block_bytes, count = range.last_page - range.first_page;
    const std::int64_t bytes = count * of_.geometry.kv_heads * each;
    const std::span<const std::int32_t> pages = slot_.tables[static_cast<std::size_t>(place.group)].pages;
    const device_block list = allocate(exec_, count * 4), dense = allocate(exec_, bytes);
    copy_in_and_wait(exec_, list.data(), pages.data() + range.first_page, count * 4);
    copy_dense_blocks<true>(exec_, place.side[c], reinterpret_cast<const std::int32_t*>(list.data()), count, each, dense.data());
    std::vector<std::byte> payload(sizeof name.bytes + static_cast<std::size_t>(bytes));
    std::memcpy(payload.data(), name.bytes.data(), sizeof name.bytes);
    copy_out_and_wait(exec_, payload.data() + sizeof name.bytes, dense.data(), bytes);
    return payload;
  }

  const learned_balance& learned() {
    if (!learned_)
      learned_ = on_host(exec_, of_.balances.rules(), of_.balances.slots()[static_cast<std::size_t>(&slot_ - of_.book->slots().data())]);
    return *learned_;
  }

 private:
  /// Consecutive layers of a block whose rows lie under one page table.
  struct run {
    std::int64_t first = 0;
    std::int64_t layers = 0;
    rows_on_device<Spec> rows;
  };
  void find_runs(const stored_block& block, std::size_t number) {
    if (!runs_.empty() && runs_of_ == number) return;
    runs_.clear();
    const std::span<const std::int32_t> layers = block.layers;
    for (std::size_t first = 0, end = 0; first < layers.size(); first = end) {
      while (end < layers.size() && of_.layer(layers[end]).row_group == of_.layer(layers[first]).row_group) ++end;
      runs_.push_back({static_cast<std::int64_t>(first), static_cast<std::int64_t>(end - first),
                       rows_on_device<Spec>(exec_, of_, runner_, slot_.tables, layers.subspan(first, end - first), call_site::here())});
    }
    runs_of_ = number;
  }
  /// Rows of the sections that are no chunks.
  void bring_rows(std::span<const stored_block> blocks, std::span<const stored_section> sections) {
    offsets_.clear();
    std::int64_t size = 0;
    for (std::size_t i = 0; i < sections.size(); ++i) {
      offsets_.push_back(size);
      if (chunks_[i].empty()) size += sections[i].range.count * features_of(blocks[sections[i].block], sections[i].part);
    }
    const device_block dense = allocate(exec_, size * static_cast<std::int64_t>(sizeof(E)));
    for (std::size_t i = 0; i < sections.size(); ++i) {
      const stored_section& s = sections[i];
      const stored_block& block = blocks[s.block];
      if (!chunks_[i].empty()) continue;
      find_runs(block, s.block);
      for (const run& r : runs_) {
        const std::int64_t heads = r.layers * block.heads, before = r.first * block.heads, features = features_of(block, s.part);
        copy_dense_rows<true>(exec_, r.rows.template of<E>(s.part, s.range.first, block.first_head, block.heads), s.range.count,
                              static_cast<std::int32_t>(heads),
                              reinterpret_cast<E*>(dense.data()) + offsets_[i] + before * features / block.rows(), features);
      }
    }
    fetched_.resize(static_cast<std::size_t>(size));
    copy_out_and_wait(exec_, fetched_.data(), dense.data(), size * static_cast<std::int64_t>(sizeof(E)));
  }
  /// The sections whose chunks are made here.
  void find_coded(std::span<const stored_block> blocks, std::span<const stored_section> sections, std::vector<chunk_place>& places,
                  std::vector<std::size_t>& numbers) const {
    for (std::size_t i = 0; i < sections.size(); ++i) {
      const stored_section& s = sections[i];
      if (!s.range.coded || !lies_together(of_, blocks[s.block])) continue;
      places.push_back({s.block, s.part, s.range.first, s.range.count});
      numbers.push_back(i);
    }
  }
  template <class Inputs, class Means>
  status encode(std::span<const stored_block> blocks, std::span<const stored_section> sections, const Inputs& inputs, const Means& means,
                std::int64_t first, int log2_step) {
    std::vector<chunk_place> places;
    std::vector<std::size_t> numbers;
    find_coded(blocks, sections, places, numbers);
    if (places.empty()) return {};
    std::vector<std::vector<std::byte>> made(places.size());
    const auto rows_of = [&](std::size_t block) -> const rows_on_device<Spec>& {
      find_runs(blocks[block], block);
      return runs_.front().rows;
    };
    const auto inputs_of = [&](const chunk_place& p) { return inputs.of(p.part, p.position - first); };
    const auto mean_of = [&](const chunk_place& p) { return means.of(p.block, p.part); };
    const status done =
        encode_stored(exec_, of_.spec, kept_spans(exec_, of_, runner_), blocks, places, rows_of, inputs_of, mean_of, log2_step, made);
    for (std::size_t i = 0; i < places.size(); ++i) chunks_[numbers[i]] = std::move(made[i]);
    return done;
  }
  static std::int64_t features_of(const stored_block& block, row_part part) {
    return block.rows() * (part == row_part::key ? layout::shape.key_dim : layout::shape.value_dim);
  }

  device exec_;
  const cache_parts<Spec>& of_;
  const device_runner<Spec>& runner_;
  const sequence_book::slot& slot_;
  std::vector<run> runs_;  // of the block that was last asked for
  std::size_t runs_of_ = 0;
  std::vector<std::int64_t> offsets_;  // (sections)
  std::vector<E> fetched_;
  std::vector<std::vector<std::byte>> chunks_;  // (sections), empty where it is rows that were fetched
  std::optional<learned_balance> learned_;
};

}  // namespace kvx
