#pragma once
// What restoring writes to a sequence in a cache on the device: chunks are decoded there, rows and columns brought over.

#include <kvx/attend/rows.hpp>
#include <kvx/backend/cuda/copy_in.cuh>
#include <kvx/backend/cuda/memory.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/cache_parts.hpp>
#include <kvx/codec/cuda/dense_rows.cuh>
#include <kvx/core/digest.hpp>
#include <kvx/core/status.hpp>
#include <kvx/cuda/device_runner.cuh>
#include <kvx/cuda/restore_stored.cuh>
#include <kvx/cuda/stored_codec.cuh>
#include <kvx/cuda/stored_rows.cuh>
#include <kvx/layout/cuda/dense_blocks.cuh>
#include <kvx/layout/page_table.hpp>
#include <kvx/stored_access.hpp>
#include <kvx/stored_blocks.hpp>
#include <kvx/stored_columns.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

namespace kvx {

/// What restoring writes to a sequence in a cache on the device; see host_writer.
///
/// what        rows of a layer are gathered on the host; `finish` brings them over. Chunks are decoded on the device, where it can
/// cost        waits for its copies, one or two a layer and one for each of its columns
template <class Spec>
class device_writer {
 public:
  using layout = typename Spec::layout_type;
  using E = typename layout::element_type;
  static constexpr bool side_by_side = false;
  static constexpr bool decodes = coded_on_device<typename Spec::codec_type>;

  std::span<const std::int32_t> outside() const { return {}; }

  void use(const device& exec, const cache_parts<Spec>& of, const device_runner<Spec>& runner) {
    exec_ = exec;
    of_ = &of;
    runner_ = &runner;
  }

  /// Whether chunks of a block are decoded here.
  bool takes(const stored_block& block) const { return block.span >= 0 && lies_together(*of_, block); }

  status open(const stored_block& block, std::size_t number, std::span<const stored_chunk> chunks) {
    if (opened_.size() <= number) opened_.resize(number + 1);
    opened_[number].emplace();
    return chunks.empty() ? status{} : opened_[number]->open(exec_, of_->spec, kept_spans(exec_, *of_, *runner_), block, chunks);
  }

  /// Rows of the chunks of the i-th layer of a block.
  void restore(const stored_block& block, std::size_t number, std::int64_t i, std::span<const token_range> kept,
               std::span<const page_table> tables) const {
    if (number >= opened_.size() || !opened_[number] || opened_[number]->empty()) return;
    const rows_on_device<Spec> rows(exec_, *of_, *runner_, tables, block.layers, call_site::here());
    opened_[number]->restore(exec_, rows, i, block.first_head, kept);
  }
  void drop(std::size_t number) {
    if (number < opened_.size()) opened_[number].reset();
  }

  void write(int, const dense_rows& from, std::span<const page_table>) {
    const std::int64_t width = from.heads * dim_of(from.part), at = std::ssize(rows_);
    constexpr auto each = static_cast<std::int64_t>(sizeof(E));
    rows_.resize(static_cast<std::size_t>(at + from.count * width));
    for (std::int64_t t = 0; t < from.count; ++t)
      std::memcpy(rows_.data() + at + t * width, from.rows + t * from.pitch * each, static_cast<std::size_t>(width * each));
    pieces_.push_back({from, at});
  }

  void finish(int layer, std::span<const page_table> tables) {
    if (!pieces_.empty()) {
      const std::int32_t layers[] = {layer};
      const rows_on_device<Spec> to(exec_, *of_, *runner_, tables, layers, call_site::here());
      const std::int64_t bytes = std::ssize(rows_) * static_cast<std::int64_t>(sizeof(E));
      const device_block dense = allocate(exec_, bytes);
      copy_in_and_wait(exec_, dense.data(), rows_.data(), bytes);
      for (const piece& p : pieces_) {
        const auto first_head = static_cast<std::int32_t>(p.of.first_head), heads = static_cast<std::int32_t>(p.of.heads);
        copy_dense_rows<false>(exec_, to.template of<E>(p.of.part, p.of.first, first_head, heads), p.of.count, heads,
                               reinterpret_cast<E*>(dense.data()) + p.at, p.of.heads * dim_of(p.of.part));
      }
    }
    rows_.clear();
    pieces_.clear();
  }

  void column(int layer, std::size_t c, std::span<const std::byte> payload, const column_range& range,
              std::span<const std::int32_t> pages) const {
    const std::int64_t each = cache_parts<Spec>::columns[c].block_bytes, count = range.last_page - range.first_page;
    const std::int64_t bytes = count * of_->geometry.kv_heads * each;
    const device_block list = allocate(exec_, count * 4), dense = allocate(exec_, bytes);
    copy_in_and_wait(exec_, list.data(), pages.data() + range.first_page, count * 4);
    copy_in_and_wait(exec_, dense.data(), payload.data() + sizeof(digest), bytes);
    copy_dense_blocks<false>(exec_, of_->layer(layer).side[c], reinterpret_cast<const std::int32_t*>(list.data()), count, each,
                             dense.data());
  }

 private:
  /// Rows that lie at `at` of the gathered ones.
  struct piece {
    dense_rows of;
    std::int64_t at = 0;
  };
  static std::int64_t dim_of(row_part part) { return part == row_part::key ? layout::shape.key_dim : layout::shape.value_dim; }

  device exec_;
  const cache_parts<Spec>* of_ = nullptr;
  const device_runner<Spec>* runner_ = nullptr;
  std::vector<E> rows_;
  std::vector<piece> pieces_;
  std::vector<std::optional<opened_chunks<Spec>>> opened_;  // (blocks)
};

}  // namespace kvx
