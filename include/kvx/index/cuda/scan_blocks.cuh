#pragma once
// The cheap look at means on the device: blocks by their means, then the pages of the best blocks by theirs.

#include <kvx/backend/cuda/dynamic_shared.cuh>
#include <kvx/core/element.hpp>
#include <kvx/core/math.hpp>
#include <kvx/index/cuda/group_rule.cuh>
#include <kvx/index/cuda/mean_dots.cuh>
#include <kvx/index/cuda/page_arrays.cuh>
#include <kvx/layout/cuda/row_dots.cuh>
#include <kvx/sketch/cuda/top_k.cuh>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// Threads of a block that looks at the blocks of one unit, and heads whose queries it holds.
inline constexpr int scan_blocks_threads = 512, scan_blocks_heads = 4;

/// Logits of the means of the pages of one unit's best blocks, NaN for all other pages; two_level_means.
///
/// what        blocks are ranked as pages are; call.to.best, worth and tops hold theirs
template <int Threads, int Heads, class Call>
__global__ void __launch_bounds__(Threads, 1) scan_blocks_kernel(Call call) {
  __shared__ page_zone zone;
  __shared__ union {
    group_scratch<Threads> group;
    top_k_scratch<Threads> top;
  } scratch;
  const std::int64_t unit = blockIdx.x, head = unit % call.heads;
  if (threadIdx.x == 0) zone = page_zone_of(call, unit);
  __syncthreads();
  if (!zone.is_searched()) return;
  const int G = call.group, dim = call.rows.key_dim, each = call.index.block / call.page_tokens;  // pages of a block
  const std::int64_t first = zone.first / each, blocks = (zone.first + zone.count) / each - first, pitch = call.to.probe_pitch;
  auto* const queries = dynamic_shared<float>();                                                  // (Heads, row_query_floats(D))
  const auto for_heads = [&](const auto& take) {
    for (int g0 = 0; g0 < G; g0 += Heads) {
      stage_row_queries<Threads, Heads>(call.plain + unit * G * dim, g0, G, dim, call.scale, queries);
      __syncthreads();
      take(g0);
      __syncthreads();
    }
  };

  float* const best = call.to.best + unit * G * pitch;                                            // (G, blocks)
  float* const worth = call.to.worth + unit * pitch;                                              // (blocks)
  for_heads([&](int g0) {
    const auto mean_of = [&](std::int64_t b) { return call.mean(zone.pages[(first + b) * each], head) + dim; };
    mean_dots<Threads, Heads>(queries, dim, blocks, dim % 8 == 0, mean_of, [&](std::int64_t b, int h, float logit) {
      if (g0 + h < G) best[(g0 + h) * pitch + b] = logit;
    });
  });
  block_group_scores(call.how.rule, best, pitch, G, blocks, call.resident != nullptr ? call.resident + unit * G : nullptr, nullptr, worth,
                     scratch.group);
  __syncthreads();
  std::int32_t* const tops = call.to.tops + unit * pitch;                                         // (blocks)
  const auto take = [&](std::int64_t i, std::int64_t b) { tops[i] = static_cast<std::int32_t>(b); };
  const std::int64_t chosen = block_top_k(worth, blocks, call.probes(zone.count, zone.wanted), scratch.top, take).taken;

  float* const logits = call.to.logits + unit * G * call.to.page_pitch;                           // (G, pages)
  for (int g = 0; g < G; ++g) {
    for (std::int64_t j = threadIdx.x; j < zone.count; j += Threads) logits[g * call.to.page_pitch + j] = quiet_nan;
  }
  __syncthreads();
  for_heads([&](int g0) {
    const auto page = [&](std::int64_t i) { return (first + tops[i / each]) * each + i % each; };
    const auto mean_of = [&](std::int64_t i) { return call.mean(zone.pages[page(i)], head); };
    mean_dots<Threads, Heads>(queries, dim, chosen * each, true, mean_of, [&](std::int64_t i, int h, float logit) {
      const std::int64_t j = page(i) - zone.first;
      const bool real = j >= 0 && g0 + h < G && logit - logit == 0;
      if (real && call.packed(zone.pages[page(i)], head).count() > 0) logits[(g0 + h) * call.to.page_pitch + j] = logit;
    });
  });
}

}  // namespace kvx
