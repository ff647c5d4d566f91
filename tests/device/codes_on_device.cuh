#pragma once
// Codes of random bytes in device memory: what a reranker on the device reads, for several sequences at once.

#include <kvx/layout/device_batch.hpp>
#include <kvx/rerank/cuda/rerank_units.cuh>
#include <kvx/sketch/key_sketch.hpp>

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "device/device_array.cuh"
#include "support/code_logits.hpp"
#include "support/random_codes.hpp"

namespace kvx::test {

/// One sequence's tokens in a batch: its pages, and new tokens that search it.
struct searched_sequence {
  std::int64_t length = 0;
  std::int64_t queries = 1;
};

/// Columns of random codes, copied to the device, whose logical pages the sequences of a batch share in different orders.
class codes_on_device {
 public:
  codes_on_device(const key_sketch& s, int dim, int page_tokens, int heads, std::int64_t tokens, unsigned seed,
                  const std::vector<searched_sequence>& sequences)
      : codes_(s, dim, page_tokens, heads, tokens, seed) {
    const head_view<float> host = codes_.head(0);
    const std::int64_t pages = (tokens + page_tokens - 1) / page_tokens;
    for (std::size_t c = 0; c < sketch_column_count; ++c) {
      const std::int64_t block = block_bytes(s, {page_tokens, dim, dim}, static_cast<sketch_column>(c));
      if (block == 0) continue;
      column_array on_device = host.columns[c];
      const auto bytes = static_cast<std::size_t>((pages * heads - 1) * on_device.pitch + block);
      memory_[c] = device_array<std::byte>(std::span<const std::byte>(on_device.data, bytes));
      on_device.data = memory_[c].data();
      columns_[c] = on_device;
    }
    std::mt19937 random(seed + 1);
    std::vector<std::int32_t> entry_of;
    for (std::size_t e = 0; e < sequences.size(); ++e) {
      std::vector<std::int32_t> table(host.pages, host.pages + pages);
      if (e > 0) std::shuffle(table.begin(), table.end(), random);
      tables_.push_back(table);
      device_tables_.emplace_back(table);
      batch_item item;
      item.pages = device_tables_.back().data();
      item.length = sequences[e].length;
      item.queries = sequences[e].queries;
      item.first = static_cast<std::int64_t>(entry_of.size());
      items_.push_back(item);
      for (std::int64_t q = 0; q < item.queries; ++q) entry_of.push_back(static_cast<std::int32_t>(e));
    }
    entry_of_ = entry_of;
    device_items_ = device_array<batch_item>(items_);
    device_entry_of_ = device_array<std::int32_t>(entry_of_);
  }

  const key_columns& columns() const { return columns_; }
  std::int64_t tokens() const { return static_cast<std::int64_t>(entry_of_.size()); }
  device_batch batch() const {
    device_batch b;
    b.items = device_items_.data();
    b.entry_of = device_entry_of_.data();
    b.tokens = tokens();
    b.entries = static_cast<int>(items_.size());
    return b;
  }
  /// The codes of one head as new token `token` sees them, on the host.
  head_view<float> head(std::int64_t token, std::int64_t h) const {
    head_view<float> view = codes_.head(h);
    view.pages = tables_[static_cast<std::size_t>(entry_of_[static_cast<std::size_t>(token)])].data();
    return view;
  }
  const random_codes& codes() const { return codes_; }

 private:
  random_codes codes_;
  device_array<std::byte> memory_[sketch_column_count];
  key_columns columns_;
  std::vector<std::vector<std::int32_t>> tables_;
  std::vector<device_array<std::int32_t>> device_tables_;
  std::vector<batch_item> items_;
  std::vector<std::int32_t> entry_of_;
  device_array<batch_item> device_items_;
  device_array<std::int32_t> device_entry_of_;
};

}  // namespace kvx::test
