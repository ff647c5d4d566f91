#pragma once
// Rows and ragged batches of a test in device memory.

#include <kvx/core/element.hpp>
#include <kvx/layout/device_batch.hpp>
#include <kvx/layout/row_view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/device_array.cuh"
#include "support/paged_rows.hpp"

namespace kvx::test {

/// Page tables of several sequences, and where each lies on the device.
struct tables_on_device {
  device_array<std::int32_t> all;
  std::vector<const std::int32_t*> host;    // as batch items of the host name them
  std::vector<const std::int32_t*> device;  // the same tables
};

/// A copy of a test's rows, poison included: what is read or written outside of its bytes shows under a sanitizer.
template <class E>
class rows_on_device {
 public:
  explicit rows_on_device(const paged_rows<E>& rows) : memory_(rows.memory()) {
    const row_view<const E> like = rows.view();
    view_.key = {memory_.data() + rows.offset(), like.key.page_stride, like.key.head_stride, like.key.slot_stride};
    view_.value = {view_.key.data + (like.value.data - like.key.data), like.value.page_stride, like.value.head_stride,
                   like.value.slot_stride};
    view_.heads = like.heads;
    view_.page_tokens = like.page_tokens;
    view_.key_dim = like.key_dim;
    view_.value_dim = like.value_dim;
    std::vector<std::int32_t> pages;
    for (const auto& table : rows.tables()) pages.insert(pages.end(), table.begin(), table.end());
    tables_.all = device_array<std::int32_t>(pages);
    std::size_t at = 0;
    for (const auto& table : rows.tables()) {
      tables_.host.push_back(table.data());
      tables_.device.push_back(tables_.all.data() + at);
      at += table.size();
    }
  }

  row_view<const E> view() const { return view_; }
  row_view<E> writer() const { return view_; }
  std::vector<E> memory() const { return memory_.read(); }
  const tables_on_device& tables() const { return tables_; }
  void replace_table(std::size_t sequence, const std::vector<std::int32_t>& table) {
    tables_.all.write(table, static_cast<std::size_t>(tables_.device[sequence] - tables_.all.data()));
  }

 private:
  device_array<E> memory_;
  row_view<E> view_;
  tables_on_device tables_;
};

/// A batch whose items lie in device memory; grids are planned for its own maxima unless others are named.
class batch_on_device {
 public:
  batch_on_device(const tables_on_device& tables, const std::vector<batch_item>& items) : tables_(&tables) {
    std::vector<batch_item> there;
    std::vector<std::int32_t> entries;
    for (std::size_t e = 0; e < items.size(); ++e) {
      there.push_back(on_device(items[e]));
      view_.most_queries = std::max(view_.most_queries, items[e].queries);
      view_.longest = std::max(view_.longest, items[e].length);
      const auto end = static_cast<std::size_t>(items[e].first + items[e].queries);
      if (entries.size() < end) entries.resize(end, -1);
      std::fill(entries.begin() + items[e].first, entries.begin() + items[e].first + items[e].queries, static_cast<std::int32_t>(e));
    }
    items_ = device_array<batch_item>(there);
    set_entries(entries);
    view_.items = items_.data();
    view_.entries = static_cast<int>(items.size());
  }

  const device_batch& view() const { return view_; }
  void set_entries(const std::vector<std::int32_t>& entries) {
    entries_ = device_array<std::int32_t>(entries);
    view_.entry_of = entries_.data();
    view_.tokens = static_cast<std::int64_t>(entries.size());
  }
  void set_item(std::size_t entry, const batch_item& item) {
    const batch_item there = on_device(item);
    items_.write({&there, 1}, entry);
  }
  void plan_for(std::int64_t most_queries, std::int64_t longest) {
    view_.most_queries = most_queries;
    view_.longest = longest;
  }

 private:
  batch_item on_device(batch_item item) const {
    for (std::size_t i = 0; i < tables_->host.size(); ++i) {
      if (item.pages == tables_->host[i]) {
        item.pages = tables_->device[i];
        return item;
      }
    }
    return item;
  }

  const tables_on_device* tables_;
  device_array<batch_item> items_;
  device_array<std::int32_t> entries_;
  device_batch view_;
};

}  // namespace kvx::test
