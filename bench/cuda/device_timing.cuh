#pragma once
// What benches on a GPU share: times by events, medians, the bandwidth of a copy, a cache full of random rows, and steps as graphs.

#include "stopwatch.cuh"

#include <kvx/kvx.cuh>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <vector>

namespace kvx::bench {

inline constexpr int layers = 4, kv_heads = 8, query_heads = 32, dim = 128;
inline constexpr std::int64_t row_bytes_of_head = 2 * dim * 2;  // K and V in bf16

/// Bytes a second that a copy within device memory moves: each byte is read once and written once, and counts twice.
inline double copy_bandwidth(const device& exec) {
  constexpr std::int64_t bytes = std::int64_t{2} << 30;
  const device_block from = allocate(exec, bytes), to = allocate(exec, bytes);
  check("cudaMemsetAsync", cudaMemsetAsync(from.data(), 1, static_cast<std::size_t>(bytes), exec.stream));
  stopwatch watch;
  const double t = watch.seconds(exec.stream, 15, [&] {
    check("cudaMemcpyAsync",
          cudaMemcpyAsync(to.data(), from.data(), static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, exec.stream));
  });
  return 2.0 * static_cast<double>(bytes) / t;
}

/// x (count, dim) <- noise about a mean that 64 rows share, so that pages differ as those of a model do.
__global__ void fill_rows(bf16* x, std::int64_t count, std::uint64_t seed, float spread) {
  for (std::int64_t i = blockIdx.x * std::int64_t{256} + threadIdx.x; i < count * dim; i += gridDim.x * std::int64_t{256}) {
    const std::int64_t row = i / dim, d = i % dim;
    const auto uniform = [](std::uint64_t bits) { return static_cast<float>(bits >> 40) * 0x1p-23f - 1; };
    const float mean = uniform(random_bits(seed + 1, static_cast<std::uint64_t>(row / (64 * kv_heads) * 4096 + row % kv_heads * 512 + d)));
    x[i] = round_to<bf16>(spread * mean + uniform(random_bits(seed, static_cast<std::uint64_t>(i))));
  }
}

__global__ void add_noise(bf16* x, std::int64_t count, std::uint64_t seed, float size) {
  for (std::int64_t i = blockIdx.x * std::int64_t{256} + threadIdx.x; i < count; i += gridDim.x * std::int64_t{256})
    x[i] =
        round_to<bf16>(to_float(x[i]) + size * (static_cast<float>(random_bits(seed, static_cast<std::uint64_t>(i)) >> 40) * 0x1p-23f - 1));
}

/// Rows of bf16 in device memory.
struct device_rows {
  device_block block;
  bf16* data;

  device_rows(const device& exec, std::int64_t count)
      : block(allocate(exec, count * dim * 2)), data(reinterpret_cast<bf16*>(block.data())) {}
  void fill(const device& exec, std::int64_t count, std::uint64_t seed, float spread) const {
    launch(exec, {dim3(512), 256}, fill_rows, data, count, seed, spread);
  }
};

/// One sequence of `tokens` tokens in four layers, and one step on it that is open.
template <class Spec>
class decoding {
 public:
  decoding(const device& exec, std::int64_t tokens, layer_kind kind, std::int64_t near_tokens = 0, int hot_rows = 1024)
      : exec_(exec),
        cache_(exec, {},
               {.layers = layers,
                .kv_heads = kv_heads,
                .query_heads = query_heads,
                .max_tokens = tokens + 1024,
                .kinds = std::vector<layer_kind>(layers, kind),
                .max_step_tokens = piece,
                .near_tokens = near_tokens,
                .hot_rows = hot_rows}),
        sequence_(cache_.open(exec)),
        k_(exec, piece * kv_heads),
        v_(exec, piece * kv_heads),
        q_(exec, piece * query_heads),
        out_(exec, query_heads) {
    q_.fill(exec, piece * query_heads, 7, .5f);
    for (std::int64_t n = 0; n < tokens; n += piece) {
      step part = cache_.begin(exec, {{sequence_, piece}});
      for (int l = 0; l < layers; ++l) {
        k_.fill(exec, piece * kv_heads, static_cast<std::uint64_t>(n * layers + l), 2);
        v_.fill(exec, piece * kv_heads, static_cast<std::uint64_t>(n * layers + l + 2), 0);
        cache_.append(exec, part, l, static_cast<const bf16*>(k_.data), static_cast<const bf16*>(v_.data));
        if (n < 2048) cache_.observe(exec, part, l, static_cast<const bf16*>(q_.data));
      }
      cache_.commit(exec, part);
    }
    step_.emplace(cache_.begin(exec, {{sequence_, 1}}));
    for (int l = 0; l < layers; ++l) cache_.append(exec, *step_, l, static_cast<const bf16*>(k_.data), static_cast<const bf16*>(v_.data));
    cache_.settle(exec);
    check("cudaStreamSynchronize", cudaStreamSynchronize(exec.stream));
  }

  /// Attention of the open step in all layers.
  void attend(const attend_options& how) {
    for (int l = 0; l < layers; ++l) cache_.attend(exec_, *step_, l, static_cast<const bf16*>(q_.data), out_.data, how);
  }

  /// Queries that differ from the last ones by noise of that size: those of the next token choose much the same rows.
  void drift(float noise) { launch(exec_, {dim3(64), 256}, add_noise, q_.data, std::int64_t{query_heads} * dim, ++drifts_, noise); }
  cache_stats stats() const { return cache_.stats(); }

 private:
  static constexpr std::int64_t piece = 4096;

  device exec_;
  cache<device, Spec> cache_;
  sequence sequence_;
  device_rows k_, v_, q_, out_;
  std::optional<step> step_;
  std::uint64_t drifts_ = 0;
};

/// What a stream captured, and graphs of parts of it.
class captured_launches {
 public:
  template <class Run>
  captured_launches(const device& exec, const Run& run) : exec_(exec) {
    check("cudaStreamBeginCapture", cudaStreamBeginCapture(exec.stream, cudaStreamCaptureModeGlobal));
    run();
    check("cudaStreamEndCapture", cudaStreamEndCapture(exec.stream, &all_));
    std::size_t count = 0;
    check("cudaGraphGetNodes", cudaGraphGetNodes(all_, nullptr, &count));
    std::vector<cudaGraphNode_t> nodes(count);
    check("cudaGraphGetNodes", cudaGraphGetNodes(all_, nodes.data(), &count));
    for (const cudaGraphNode_t node : nodes) {  // in the order of the capture, since one stream was captured
      cudaGraphNodeType type{};
      check("cudaGraphNodeGetType", cudaGraphNodeGetType(node, &type));
      if (type == cudaGraphNodeTypeKernel) kernels_.push_back(node);
    }
  }
  captured_launches(const captured_launches&) = delete;
  captured_launches& operator=(const captured_launches&) = delete;
  ~captured_launches() { (void)cudaGraphDestroy(all_); }

  int kernels_of_layer() const { return static_cast<int>(kernels_.size()) / layers; }

  /// Seconds of one replay of everything.
  double seconds(stopwatch& watch, int rounds) const { return replay(watch, rounds, all_); }

  /// Seconds of the first `count` kernels of every layer.
  double seconds_of_first(stopwatch& watch, int rounds, int count) const {
    cudaGraph_t part = nullptr;
    check("cudaGraphCreate", cudaGraphCreate(&part, 0));
    cudaGraphNode_t last = nullptr;
    for (std::size_t i = 0; i < kernels_.size(); ++i) {
      if (static_cast<int>(i) % kernels_of_layer() >= count) continue;
      cudaKernelNodeParams params{};
      check("cudaGraphKernelNodeGetParams", cudaGraphKernelNodeGetParams(kernels_[i], &params));
      cudaGraphNode_t node = nullptr;
      check("cudaGraphAddKernelNode", cudaGraphAddKernelNode(&node, part, &last, last != nullptr ? 1 : 0, &params));
      last = node;
    }
    const double t = replay(watch, rounds, part);
    (void)cudaGraphDestroy(part);
    return t;
  }

 private:
  double replay(stopwatch& watch, int rounds, cudaGraph_t graph) const {
    cudaGraphExec_t exec = nullptr;
    check("cudaGraphInstantiate", cudaGraphInstantiate(&exec, graph, 0));
    const double t = watch.seconds(exec_.stream, rounds, [&] { check("cudaGraphLaunch", cudaGraphLaunch(exec, exec_.stream)); });
    (void)cudaGraphExecDestroy(exec);
    return t;
  }

  device exec_;
  cudaGraph_t all_ = nullptr;
  std::vector<cudaGraphNode_t> kernels_;
};

}  // namespace kvx::bench
