#pragma once
// A cache on the device as host code sees it: host memory in, host memory out, every call waits. What tests of the host's cache call.

#include "device_array.cuh"

#include <kvx/backend/device.cuh>
#include <kvx/cache.hpp>
#include <kvx/cuda/device_runner.cuh>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvx::test {

/// Bytes of device memory, brought to the host behind all work of the stream.
inline std::vector<std::byte> bytes_of(const device& exec, const void* from, std::int64_t bytes) {
  std::vector<std::byte> all(static_cast<std::size_t>(bytes));
  check("cudaStreamSynchronize", cudaStreamSynchronize(exec.stream));
  if (bytes > 0) check("cudaMemcpy", cudaMemcpy(all.data(), from, all.size(), cudaMemcpyDeviceToHost));
  return all;
}

/// Has the names of kvx::cache<kvx::host, Spec>. `view` and `column` show copies that are made when they are called, and live until the
/// next call of the same name.
template <class Spec>
class cache_on_host {
 public:
  using cache_type = cache<device, Spec>;
  using layout = typename cache_type::layout;
  using index = typename cache_type::index;
  using E = typename cache_type::element_type;
  static constexpr kvx::zones zones = cache_type::zones;
  static constexpr double weight_rounding = std::is_same_v<E, bf16> ? 0x1p-7 : std::is_same_v<E, kvx::half> ? 0x1p-10 : 0;  // of prompts

  cache_on_host(const device& exec, Spec spec, const kvx::geometry& g)
      : exec_(exec), plan_(plan<layout>(g, Spec::columns(layout::shape), call_site::here())), cache_(exec, spec, g) {}

  cache_type& on_device() { return cache_; }
  const kvx::geometry& geometry() const { return cache_.geometry(); }
  sequence open(const device& exec) { return cache_.open(exec); }
  void close(const device& exec, sequence s) { cache_.close(exec, s); }
  sequence fork(const device& exec, sequence s) { return cache_.fork(exec, s); }
  sequence fork(const device& exec, sequence s, std::int64_t n) { return cache_.fork(exec, s, n); }
  void truncate(const device& exec, sequence s, std::int64_t n) { cache_.truncate(exec, s, n); }
  std::int64_t length(sequence s) const { return cache_.length(s); }
  cache_stats stats() const { return cache_.stats(); }
  std::span<const std::int32_t> pages(int layer, sequence s) const { return cache_.pages(layer, s); }

  step begin(const device& exec, std::span<const advance> batch) { return cache_.begin(exec, batch); }
  step begin(const device& exec, std::initializer_list<advance> batch) { return cache_.begin(exec, batch); }
  void commit(const device& exec, step& s) { cache_.commit(exec, s); }
  void commit(const device& exec, step& s, std::span<const std::int64_t> accepted) { cache_.commit(exec, s, accepted); }

  template <class T>
  void append(const device& exec, step& s, int layer, const T* k, const T* v) {
    const auto rows = static_cast<std::size_t>(s.tokens() * geometry().kv_heads);
    const device_array<T> keys(std::span(k, rows * static_cast<std::size_t>(layout::shape.key_dim)));
    const device_array<T> values(std::span(v, rows * static_cast<std::size_t>(layout::shape.value_dim)));
    cache_.append(exec, s, layer, static_cast<const T*>(keys.data()), static_cast<const T*>(values.data()));
    wait();
  }
  template <class T>
  void attend(const device& exec, const step& s, int layer, const T* q, T* out, attend_options options = {}) {
    const auto rows = static_cast<std::size_t>(s.tokens() * geometry().query_heads);
    const device_array<T> queries(std::span(q, rows * static_cast<std::size_t>(layout::shape.key_dim)));
    const device_array<T> outputs(rows * static_cast<std::size_t>(layout::shape.value_dim));
    const device_array<float> lse(rows);
    float* const wanted = options.lse;
    if (wanted != nullptr) options.lse = lse.data();
    cache_.attend(exec, s, layer, static_cast<const T*>(queries.data()), outputs.data(), options);
    wait();
    if (rows == 0) return;
    const std::vector<T> found = outputs.read();
    std::memcpy(out, found.data(), found.size() * sizeof(T));
    if (wanted == nullptr) return;
    const std::vector<float> sums = lse.read();
    std::memcpy(wanted, sums.data(), sums.size() * sizeof(float));
  }
  template <class T>
  void observe(const device& exec, const step& s, int layer, const T* q) {
    const device_array<T> queries(std::span(q, static_cast<std::size_t>(s.tokens() * geometry().query_heads * layout::shape.key_dim)));
    cache_.observe(exec, s, layer, static_cast<const T*>(queries.data()));
    wait();
  }

  row_view<const E> view(int layer) const {
    if constexpr (cache_type::spills) {
      if (geometry().kind(layer).sees == layer_kind::attention::retrieve) return gathered(layer);
    }
    row_view<const E> rows = cache_.view(layer);
    rows_ = bytes_of(exec_, rows.key.data, row_bytes<E>(layout::shape, page_count(layer), rows.heads));
    const auto* const first = reinterpret_cast<const E*>(rows_.data());
    rows.value.data = first + (rows.value.data - rows.key.data);
    rows.key.data = first;
    return rows;
  }
  column_array column(int layer, int c) const {
    column_array column = cache_.column(layer, c);
    if (column.data == nullptr) return column;
    cache_.settle(exec_);
    column_ = bytes_of(exec_, column.data, page_count(layer) * column.heads * column.pitch);
    column.data = column_.data();
    return column;
  }

  /// Writes the copies that `view` and `column` have last shown back, as tests change them.
  void restore_rows(int layer) const {
    if constexpr (cache_type::spills) {
      if (geometry().kind(layer).sees == layer_kind::attention::retrieve) return scatter(layer);
    }
    restore(cache_.view(layer).key.data, rows_);
  }
  void restore_column(int layer, int c) const { restore(cache_.column(layer, c).data, column_); }
  void wait() const { check("cudaStreamSynchronize", cudaStreamSynchronize(exec_.stream)); }

 private:
  /// Rows that may lie far, brought together under their pages' ids.
  row_view<const E> gathered(int layer) const {
    const auto placed = cache_.placed(layer);
    const row_view<const E> near = placed.near;
    const std::int64_t page = near.key.page_stride, bytes = page * static_cast<std::int64_t>(sizeof(E));
    const std::vector<std::byte> copy = bytes_of(exec_, near.key.data, placed.far.near_pages * bytes);
    rows_.assign(static_cast<std::size_t>(page_count(layer) * bytes), std::byte{0xff});
    for (std::size_t p = 0; p < placed.frames.size(); ++p) {
      const std::int64_t frame = placed.frames[p], beyond = frame - placed.far.near_pages;
      if (frame < 0) continue;
      const auto* const from =
          beyond < 0 ? copy.data() + frame * bytes : reinterpret_cast<const std::byte*>(placed.far.key.data) + beyond * bytes;
      std::memcpy(rows_.data() + p * static_cast<std::size_t>(bytes), from, static_cast<std::size_t>(bytes));
    }
    row_view<const E> rows = near;
    rows.key.data = reinterpret_cast<const E*>(rows_.data());
    rows.value.data = rows.key.data + (near.value.data - near.key.data);
    return rows;
  }
  /// Writes what `gathered` has shown back.
  void scatter(int layer) const {
    const auto placed = cache_.placed(layer);
    const std::int64_t page = placed.near.key.page_stride, bytes = page * static_cast<std::int64_t>(sizeof(E));
    wait();
    for (std::size_t p = 0; p < placed.frames.size(); ++p) {
      const std::int64_t frame = placed.frames[p], beyond = frame - placed.far.near_pages;
      if (frame < 0) continue;
      const E* const to = beyond < 0 ? placed.near.key.data + frame * page : placed.far.key.data + beyond * page;
      const auto* const from = rows_.data() + p * static_cast<std::size_t>(bytes);
      check("cudaMemcpy", cudaMemcpy(const_cast<E*>(to), from, static_cast<std::size_t>(bytes), cudaMemcpyDefault));
    }
  }
  std::int64_t page_count(int layer) const {
    return plan_.groups[static_cast<std::size_t>(plan_.group_of[static_cast<std::size_t>(layer)])].pages();
  }
  void restore(const void* to, const std::vector<std::byte>& from) const {
    wait();
    if (!from.empty()) check("cudaMemcpy", cudaMemcpy(const_cast<void*>(to), from.data(), from.size(), cudaMemcpyHostToDevice));
  }

  device exec_;
  cache_plan plan_;
  mutable cache_type cache_;
  mutable std::vector<std::byte> rows_;
  mutable std::vector<std::byte> column_;
};

}  // namespace kvx::test
