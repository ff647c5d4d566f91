#pragma once
// The setting that decode steps are timed in, and what their benches share: a sequence with a token in an open step, stages in turn.

#include "machine.hpp"

#include <kvx/kvx.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <utility>
#include <vector>

namespace kvx::bench {

/// One layer of 8 KV heads for 32 query heads, bf16, D 128.
inline constexpr int step_heads = 8, step_group = 4, step_dim = 128;

inline geometry step_geometry(std::int64_t tokens, int sequences = 1) {
  return {.layers = 1,
          .kv_heads = step_heads,
          .query_heads = step_heads * step_group,
          .max_tokens = tokens,
          .max_sequences = sequences,
          .kinds = {layer_kind::retrieve()},
          .max_step_tokens = 4096};
}

inline void print_threads() {
  std::printf("# %d threads, kernels: %s%s\n", cores(), name_of(simd_level().used), simd_level().refused ? " (KVX_SIMD refused)" : "");
}

/// A sequence of a cache, its last token still in a step.
template <class Cache>
class open_step {
 public:
  open_step(Cache& c, const host& exec, sequence s)
      : cache_(c), exec_(exec), sequence_(s), tokens_(c.length(s) + 1), step_(c.begin(exec, {{s, 1}})) {
    const std::vector<bf16> row(step_heads * step_dim, round_to<bf16>(.5f));
    cache_.append(exec_, step_, 0, row.data(), row.data());
  }

  std::int64_t tokens() const { return tokens_; }
  const std::byte* rows() const { return reinterpret_cast<const std::byte*>(cache_.view(0).key.data); }
  const std::int32_t* pages() const { return cache_.pages(0, sequence_).data(); }

  /// Of all query heads.   queries (Q, D)
  void ask(std::vector<float> queries) {
    queries_ = std::move(queries);
    out_.resize(queries_.size());
  }
  void attend(const attend_options& how) { cache_.attend(exec_, step_, 0, queries_.data(), out_.data(), how); }
  void dense() { attend({.path = attend_options::route::dense}); }

 protected:
  /// What run_head(h, seconds) says of each stage, all heads together, over the threads.
  template <std::size_t Stages, class RunHead>
  std::array<double, Stages> seconds_of_stages(const RunHead& run_head) const {
    std::array<std::array<double, Stages>, step_heads> each{};
    for_each_task(exec_, step_heads, [&](std::int64_t h) { run_head(h, each[static_cast<std::size_t>(h)]); });
    std::array<double, Stages> sum{};
    for (const auto& one : each) std::transform(one.begin(), one.end(), sum.begin(), sum.begin(), std::plus<>());
    for (double& x : sum) x /= cores();
    return sum;
  }

  Cache& cache_;
  const host& exec_;
  sequence sequence_;
  std::int64_t tokens_;
  step step_;
  std::vector<float> queries_, out_;
};

/// Writes down how long each stage took, one after the other.
template <std::size_t Stages>
class stage_clock {
 public:
  explicit stage_clock(std::array<double, Stages>& seconds) : seconds_(seconds), last_(std::chrono::steady_clock::now()) {}
  void done() {
    const auto now = std::chrono::steady_clock::now();
    seconds_[next_++] = std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  std::array<double, Stages>& seconds_;
  std::chrono::steady_clock::time_point last_;
  std::size_t next_ = 0;
};

}  // namespace kvx::bench
