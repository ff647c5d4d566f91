#pragma once
// Searches of a ragged batch over columns of random codes in device memory, and the zones that the references are asked for.

#include <kvx/index/cuda/bucket_search.cuh>
#include <kvx/index/cuda/scan_buckets.cuh>
#include <kvx/index/cuda/sign_sums.cuh>
#include <kvx/layout/device_batch.hpp>
#include <kvx/layout/token_zone.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "device/device_array.cuh"
#include "support/bucket_columns.hpp"

namespace kvx::test {

/// length      of a sequence, its new tokens included
struct searched {
  std::int64_t length = 0;
  std::int64_t queries = 1;
};

/// Columns, queries and arrays of one search. Sequences lie one after the other in one pool.
class bucket_case {
 public:
  bucket_case(const bucket_search_shape& shape, std::vector<searched> sequences, std::uint32_t seed)
      : shape_(shape), sequences_(std::move(sequences)), columns_(shape.sketch, shape.page, shape.heads, tokens_of_all(), seed) {
    for (std::int64_t h = 0; h < shape.heads; ++h) columns_.fill_at_random(h);
    std::int64_t pages = 0;
    for (const searched& q : sequences_) {
      const std::int64_t first = tokens_;
      first_page_.push_back(pages);
      pages += pages_of(q.length);
      tokens_ += q.queries;
      items_.push_back({nullptr, q.length, q.queries, first});
      for (std::int64_t i = 0; i < q.queries; ++i) entries_.push_back(static_cast<std::int32_t>(items_.size() - 1));
      shape_.longest = std::max(shape_.longest, q.length);
    }
    shape_.tokens = std::max(shape_.tokens, tokens_);
    std::normal_distribution<float> normal;
    for (std::int64_t u = 0; u < units(); ++u) {
      queries_.push_back(random_queries(shape.group, shape.page.key_dim, shape.sketch.seed, columns_.random()));
    }
  }

  bucket_search_shape& shape() { return shape_; }
  bucket_columns& columns() { return columns_; }
  std::int64_t units() const { return tokens_ * shape_.heads; }
  kvx::test::group_queries& queries(std::int64_t unit) { return queries_[static_cast<std::size_t>(unit)]; }
  float scale = .1f;

  token_zone seen(std::int64_t unit) const {
    const std::int64_t token = unit / shape_.heads;
    const auto entry = entries_[static_cast<std::size_t>(token)];
    const batch_item& item = items_[static_cast<std::size_t>(entry)];
    return zone_of(item, entry, shape_.cut, shape_.page.tokens, token - item.first);
  }
  /// The zone of a unit as the host's functions take it.
  bucket_zone zone(std::int64_t unit) const {
    const token_zone seen = this->seen(unit);
    bucket_zone z = columns_.zone(unit % shape_.heads, seen.begin, seen.end);
    z.pages += first_page_[static_cast<std::size_t>(seen.entry)];
    return z;
  }

  /// Copies everything to the device.
  void upload(std::int64_t chunk = 0) {
    const bucket_zone z = columns_.zone(0, 0, 0);
    column_array* const there[] = {&on_device_.signs, &on_device_.norms, &on_device_.means};
    for (std::size_t c = 0; c <= column_means; ++c) {
      *there[c] = z.columns[c];
      bytes_[c] = device_array<std::byte>(
          std::span<const std::byte>(z.columns[c].data, static_cast<std::size_t>(z.columns[c].head_stride * shape_.heads)));
      there[c]->data = bytes_[c].data();
    }
    pages_ = device_array<std::int32_t>(std::span<const std::int32_t>(z.pages, static_cast<std::size_t>(pages_of(tokens_of_all()))));
    std::vector<batch_item> items = items_;
    for (std::size_t i = 0; i < items.size(); ++i) items[i].pages = pages_.data() + first_page_[i];
    device_items_ = device_array<batch_item>(items);
    device_entries_ = device_array<std::int32_t>(entries_);
    std::vector<float> rotated, plain, lse;
    for (const auto& q : queries_) {
      rotated.insert(rotated.end(), q.rotated.begin(), q.rotated.end());
      plain.insert(plain.end(), q.plain.begin(), q.plain.end());
      lse.insert(lse.end(), q.lse.begin(), q.lse.end());
    }
    rotated_ = device_array<float>(rotated);
    plain_ = device_array<float>(plain);
    lse_ = device_array<float>(lse);
    scratch_ = device_array<std::byte>(static_cast<std::size_t>(bucket_search_scratch(shape_, static_cast<int>(chunk))));
    scratch_parts memory{scratch_.data()};
    search_ = plan_search(shape_, memory, static_cast<int>(chunk));
  }

  /// Changes the length of a sequence on the device, as a later step does; not beyond what was planned.
  void set_length(std::size_t entry, std::int64_t length) {
    items_[entry].length = length;
    batch_item item = items_[entry];
    item.pages = pages_.data() + first_page_[entry];
    device_items_.write({&item, 1}, entry);
  }

  const bucket_search& search() const { return search_; }
  const scanned_columns& on_device() const { return on_device_; }
  device_batch batch() const {
    device_batch b;
    b.items = device_items_.data();
    b.entry_of = device_entries_.data();
    b.tokens = tokens_;
    b.entries = static_cast<int>(items_.size());
    b.most_queries = shape_.tokens;
    b.longest = shape_.longest;
    return b;
  }
  device_queries device_view() const { return {rotated_.data(), plain_.data(), lse_.data(), scale}; }

  /// `count` values of the arrays of the search, from a pointer on.
  template <class T>
  std::vector<T> read(const T* from, std::int64_t count) const {
    std::vector<T> values(static_cast<std::size_t>(count));
    if (count > 0) check("cudaMemcpy", cudaMemcpy(values.data(), from, values.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }
  std::vector<std::int32_t> ids(std::int64_t unit) const {
    const auto count = read(search_.counts + unit, 1)[0];
    return read(search_.ids_of(unit), count);
  }

 private:
  std::int64_t pages_of(std::int64_t tokens) const { return (tokens + shape_.page.tokens - 1) / shape_.page.tokens; }
  std::int64_t tokens_of_all() const {
    std::int64_t sum = 0;
    for (const searched& q : sequences_) sum += pages_of(q.length) * shape_.page.tokens;
    return sum;
  }

  bucket_search_shape shape_;
  std::vector<searched> sequences_;
  bucket_columns columns_;
  std::int64_t tokens_ = 0;
  std::vector<std::int64_t> first_page_;
  std::vector<batch_item> items_;
  std::vector<std::int32_t> entries_;
  std::vector<kvx::test::group_queries> queries_;
  device_array<std::byte> bytes_[column_means + 1];
  device_array<std::int32_t> pages_;
  device_array<batch_item> device_items_;
  device_array<std::int32_t> device_entries_;
  device_array<float> rotated_, plain_, lse_;
  device_array<std::byte> scratch_;
  scanned_columns on_device_;
  bucket_search search_;
};

/// Searches of two KV heads that keep 3 rows.
inline bucket_search_shape two_heads(int tokens, int dim, int group) {
  bucket_search_shape s;
  s.page = {tokens, dim, dim};
  s.cut = {.sink = 3, .local = 20};
  s.heads = 2;
  s.group = group;
  s.keep = 3;
  return s;
}

/// Prepares and scans by sums of signs.
inline void scan(const device& exec, const bucket_case& c) {
  prepare_sign_sums(exec, c.search(), c.on_device(), c.batch(), c.device_view());
  scan_sign_sums(exec, c.search(), c.on_device(), c.batch());
}

}  // namespace kvx::test
