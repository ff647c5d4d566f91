#pragma once
// Scores of tokens for a whole group of query heads, on the host.

#include <kvx/backend/host.hpp>
#include <kvx/backend/simd/dispatch.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/index/group_rule.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace kvx {

namespace host_group {

/// Tokens of one task.
inline constexpr std::int64_t task_tokens = 4096;

/// What softmax_sum keeps of a head.
struct head_sum {
  float max = -infinity;
  float factor = 0;
  std::atomic<std::int64_t> sum{0};
};

constexpr std::int64_t pitch(std::int64_t tokens) { return round_up(tokens, 16); }

constexpr std::int64_t heads_bytes(std::int64_t heads) {
  return round_up(heads * static_cast<std::int64_t>(sizeof(head_sum) + sizeof(float)), 64);
}

/// softmax_sum by the kernels of a given instruction set.
inline void softmax_sums(const simd::rerank_table& kernels, const host& exec, tensor_view<const float, 2> logits,
                         std::span<const float> resident, std::span<float> scores, std::span<std::byte> scratch) {
  const std::int64_t G = logits.extents[0], C = logits.extents[1], P = pitch(C);
  void* start = scratch.data();
  std::size_t space = scratch.size();
  auto* const at = static_cast<std::byte*>(std::align(64, 1, start, space));
  auto* const heads = reinterpret_cast<head_sum*>(at);                                              // (G)
  auto* const factors = reinterpret_cast<float*>(heads + G);                                        // (G)
  auto* const e = reinterpret_cast<float*>(at + heads_bytes(G));                                    // (G, P)
  const std::int64_t tasks = ceil_div(C, task_tokens);
  const auto range = [&](std::int64_t task) { return std::min(task_tokens, C - task * task_tokens); };
  for_each_task(exec, G, [&](std::int64_t g) {
    head_sum* const head = std::construct_at(heads + g);
    if (!resident.empty() && !is_nan(resident[static_cast<std::size_t>(g)])) head->max = resident[static_cast<std::size_t>(g)];
    head->max = std::max(head->max, kernels.largest(logits.at(g, 0), C));
  });
  for_each_task(exec, G * tasks, [&](std::int64_t task) {
    const std::int64_t g = task / tasks, first = task % tasks * task_tokens;
    heads[g].sum += kernels.exponentials(logits.at(g, first), range(task % tasks), heads[g].max, e + g * P + first);  // integers: any order
  });
  for (std::int64_t g = 0; g < G; ++g)
    factors[g] = softmax_share(heads[g].max, heads[g].sum, resident.empty() ? -infinity : resident[static_cast<std::size_t>(g)]);
  for_each_task(exec, tasks, [&](std::int64_t task) {
    const std::int64_t first = task * task_tokens;
    kernels.mix(e + first, P, static_cast<int>(G), factors, range(task), scores.data() + first);
  });
}

}  // namespace host_group

/// Bytes of scratch that group_scores needs for C tokens and a group of G heads.
constexpr std::int64_t group_scores_scratch(const host&, group_rule rule, std::int64_t heads, std::int64_t tokens) {
  if (rule.by != group_rule::kind::softmax_sum) return 0;
  return 64 + host_group::heads_bytes(heads) + heads * host_group::pitch(tokens) * static_cast<std::int64_t>(sizeof(float));
}

/// One score for each token from the logits of a group of heads.
///
/// shapes      logits (G, C), rows dense; resident (G) or empty; scores (C)
/// units       logits and resident in nats; softmax_sum: scores are probabilities, at most G
/// cost        softmax_sum: one exponential a logit
/// exactness   the same bits for every instruction set and any number of threads
/// errors      usage_error for shapes that do not fit; a NaN logit makes its token's score NaN and changes no other
inline void group_scores(const host& exec, group_rule rule, tensor_view<const float, 2> logits, std::span<const float> resident,
                         std::span<float> scores, std::span<std::byte> scratch, call_site where = call_site::here()) {
  const std::int64_t G = logits.extents[0], C = logits.extents[1];
  require_range("group_scores: heads", G, 1, INT32_MAX, where);
  require_range("group_scores: scores", static_cast<std::int64_t>(scores.size()), C, C, where);
  require(logits.strides[1] == 1 || C <= 1, "group_scores: rows of logits must be dense", where);
  require(resident.empty() || static_cast<std::int64_t>(resident.size()) == G, "group_scores: resident must have one entry a head", where);
  require(static_cast<std::int64_t>(scratch.size()) >= group_scores_scratch(exec, rule, G, C),
          "group_scores: scratch is smaller than group_scores_scratch", where);
  if (rule.by == group_rule::kind::softmax_sum)
    return host_group::softmax_sums(simd::rerank_kernels(), exec, logits, resident, scores, scratch);
  const bool mean = rule.by == group_rule::kind::mean;
  for_each_task(exec, ceil_div(C, host_group::task_tokens), [&](std::int64_t task) {
    const std::int64_t end = std::min(C, (task + 1) * host_group::task_tokens);
    for (std::int64_t t = task * host_group::task_tokens; t < end; ++t) {
      const float* const column = logits.at(0, t);
      const auto count = static_cast<int>(G);
      scores[static_cast<std::size_t>(t)] =
          mean ? mean_score(column, logits.strides[0], count) : max_score(column, logits.strides[0], count);
    }
  });
}

}  // namespace kvx
