#pragma once
// The codec of a device cache in device memory: models of its spans, chunks that follow each other, turns of their keys.

#include <kvx/backend/cuda/copy_in.cuh>
#include <kvx/backend/cuda/memory.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/cache_parts.hpp>
#include <kvx/codec/calibrated.hpp>
#include <kvx/codec/chain.hpp>
#include <kvx/codec/cuda/chunk_run.cuh>
#include <kvx/codec/cuda/span_model.cuh>
#include <kvx/codec/cuda/span_rows.cuh>
#include <kvx/codec/host/calibrated.hpp>
#include <kvx/codec/raw.hpp>
#include <kvx/stored_blocks.hpp>
#include <kvx/transform/cuda/tiled_product.cuh>
#include <kvx/transform/cuda/turns.cuh>
#include <kvx/transform/half_product.hpp>
#include <kvx/transform/rope.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace kvx {

/// Codecs whose chunks kernels write and read. DEFLATE is the host's.
template <class Codec>
inline constexpr bool coded_on_device = false;
template <class T, class Q, class E>
inline constexpr bool coded_on_device<calibrated<chain<T, Q, E>>> = std::same_as<E, rans> || std::same_as<E, fixed_width>;

/// The models of a calibration, K and V of every span. Moves.
///
/// cost        the bytes of the bases; waits for their copies
class spans_on_device {
 public:
  spans_on_device(const device& exec, const calibrated_model& of) : tables_(exec, *of.model(0, row_part::key).tables) {
    for (std::size_t s = 0; s < of.of().spans.size(); ++s) {
      for (const row_part part : {row_part::key, row_part::value}) spans_.emplace_back(exec, model_of(of, {s, part}), tables_.view());
    }
  }
  const span_on_device& of(std::size_t span, row_part part) const { return spans_[2 * span + (part == row_part::key ? 0 : 1)]; }

 private:
  scale_tables_on_device tables_;
  std::vector<span_on_device> spans_;  // (spans, K and V)
};

/// The products that a codec works with on a device.
template <class Chain>
half_product device_products(const calibrated<Chain>& codec) {
  return codec.device_product.run != nullptr ? codec.device_product : tiled_products();
}

/// Whether one table says where the rows of all layers of a block lie.
template <class Spec>
bool lies_together(const cache_parts<Spec>& of, const stored_block& block) {
  return std::all_of(block.layers.begin(), block.layers.end(),
                     [&](std::int32_t l) { return of.layer(l).row_group == of.layer(block.layers.front()).row_group; });
}

/// The models of a cache's codec, which its runner keeps.
template <class Spec, class Runner>
const spans_on_device& kept_spans(const device& exec, const cache_parts<Spec>& of, const Runner& runner) {
  return runner.kept_for_storing([&] { return spans_on_device(exec, *of.spec.codec.model); });
}

/// Chunks [first, first + count) that follow each other, all of `chunk_tokens` tokens but the last, which may have fewer.
struct chunks_in_run {
  std::size_t first = 0;
  std::size_t count = 0;
  chunk_place of;  ///< the first token and all tokens
  std::int64_t chunk_tokens = 0;
};

/// Chunks as runs take them.
inline std::vector<chunks_in_run> runs_of(std::span<const chunk_place> chunks) {
  std::vector<chunks_in_run> runs;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const chunk_place& c = chunks[i];
    if (!runs.empty()) {
      chunks_in_run& last = runs.back();
      const bool follows = c.block == last.of.block && c.part == last.of.part && c.position == last.of.position + last.of.tokens;
      if (follows && chunks[i - 1].tokens == last.chunk_tokens && c.tokens <= last.chunk_tokens) {
        ++last.count;
        last.of.tokens += c.tokens;
        continue;
      }
    }
    runs.push_back({i, 1, c, c.tokens});
  }
  return runs;
}

/// The turns of a span's keys at the tokens of a run; of values none.
///
/// cost        waits for its copies
class turns_of_run {
 public:
  turns_of_run() = default;
  turns_of_run(const device& exec, const calibration& c, std::size_t span, const chunk_place& of) {
    if (of.part != row_part::key || c.turn_of_layer.empty()) return;
    std::vector<std::int64_t> positions(static_cast<std::size_t>(of.tokens));
    std::iota(positions.begin(), positions.end(), of.position);
    turns_.resize(c.turns.size());
    std::vector<bool> made(turns_.size());
    std::vector<device_turns> heads;
    for (const std::int32_t layer : c.spans[span].layers) {
      const std::size_t number = c.turn_of_layer[static_cast<std::size_t>(layer)];
      if (!made[number]) turns_[number] = turns_on_device(exec, rope_turns(c.turns[number], positions));
      made[number] = true;
      heads.insert(heads.end(), static_cast<std::size_t>(c.spans[span].heads), turns_[number].view());
    }
    const auto bytes = static_cast<std::int64_t>(heads.size() * sizeof(device_turns));
    heads_ = allocate(exec, bytes);
    copy_in_and_wait(exec, heads_.data(), heads.data(), bytes);
  }
  device_span_turns view() const { return {reinterpret_cast<const device_turns*>(heads_.data())}; }

 private:
  std::vector<turns_on_device> turns_;  // (embeddings of the calibration)
  device_block heads_;                  // (layers of the span, heads)
};

/// What is foretold of the tokens of a run, as kernels take it: (rank, tokens).
///
/// shapes      inputs (tokens, rank), null where nothing is foretold
/// cost        waits for its copy
inline device_block inputs_of_run(const device& exec, const float* inputs, std::int64_t rank, std::int64_t tokens) {
  if (inputs == nullptr || rank == 0) return {};
  std::vector<float> turned(static_cast<std::size_t>(rank * tokens));
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t r = 0; r < rank; ++r) turned[static_cast<std::size_t>(r * tokens + t)] = inputs[t * rank + r];
  }
  const auto bytes = static_cast<std::int64_t>(turned.size() * sizeof(float));
  device_block there = allocate(exec, bytes);
  copy_in_and_wait(exec, there.data(), turned.data(), bytes);
  return there;
}

/// The mean of a run's text, as kernels take it; nothing where the model's holds.
///
/// shapes      mean (features), null where there is none
/// cost        waits for its copy
inline device_block mean_of_run(const device& exec, const float* mean, std::int64_t features) {
  if (mean == nullptr) return {};
  const auto bytes = features * static_cast<std::int64_t>(sizeof(float));
  device_block there = allocate(exec, bytes);
  copy_in_and_wait(exec, there.data(), mean, bytes);
  return there;
}

}  // namespace kvx
