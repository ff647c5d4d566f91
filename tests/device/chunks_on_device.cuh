#pragma once
// Chunks of one span in device memory for tests: each has memory of its own, so that a look beyond its bytes is seen.

#include <kvx/codec/cuda/device_chunk.cuh>
#include <kvx/codec/cuda/span_model.cuh>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "device/device_array.cuh"
#include "support/span_case.hpp"

namespace kvx::test {

/// A span_case whose model lies in device memory.
struct span_there {
  test_stream stream;
  device exec{.stream = stream.get()};
  scale_tables_on_device tables{exec, span_case::tables()};
  span_on_device model;

  explicit span_there(const span_model& s) : model(exec, s, tables.view()) {}
  explicit span_there(const span_case& s) : span_there(s.model()) {}
};

/// Chunks to code or to decode, with coefficients of their own.
class chunks_there {
 public:
  explicit chunks_there(const span_there& span) : span_(span) {}

  /// bytes       of the chunk; or the room for one
  /// values      (components, tokens) coefficients, or what stands there before they are decoded
  void add(std::span<const std::byte> bytes, std::int64_t components, std::int32_t tokens, std::span<const float> values) {
    bytes_.emplace_back(bytes);
    coefficients_.emplace_back(values);
    list_.push_back({span_.model.there(), bytes_.back().data(), static_cast<std::int64_t>(bytes.size()), tokens, components,
                     coefficients_.back().data(), tokens, nullptr});
    most_.count = static_cast<std::int64_t>(list_.size());
    most_.most_tokens = std::max<std::int64_t>(most_.most_tokens, tokens);
    most_.most_components = std::max(most_.most_components, components);
    most_.most_runs = span_.model.view().run_count;
  }

  /// What `run`(chunks, results) says of every chunk.
  template <class Run>
  std::vector<chunk_result> results_of(const Run& run) {
    there_ = device_array<device_chunk>(list_);
    device_chunks chunks = most_;
    chunks.list = there_.data();
    const device_array<chunk_result> results(list_.size());
    run(static_cast<const device_chunks&>(chunks), results.data());
    span_.stream.wait();
    return results.read();
  }

  std::vector<std::byte> bytes(std::size_t i, std::int64_t count) const {
    auto all = bytes_[i].read();
    all.resize(static_cast<std::size_t>(count));
    return all;
  }
  std::vector<float> coefficients(std::size_t i) const { return coefficients_[i].read(); }
  std::size_t size() const { return list_.size(); }

 private:
  const span_there& span_;
  std::vector<device_array<std::byte>> bytes_;
  std::vector<device_array<float>> coefficients_;
  std::vector<device_chunk> list_;
  device_array<device_chunk> there_;
  device_chunks most_;
};

}  // namespace kvx::test
