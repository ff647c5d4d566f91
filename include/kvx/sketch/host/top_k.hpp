#pragma once
// The k largest of many scores on the host, between two borders that counting brings close together.

#include <kvx/backend/host.hpp>
#include <kvx/backend/simd/dispatch.hpp>
#include <kvx/core/check.hpp>
#include <kvx/sketch/top_k.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvx {

namespace host_top_k {

/// Scores around the k-th largest that are set aside at most, and scores that are looked at together.
inline constexpr std::int64_t most_near = 2048, piece = 4096;

/// Scores that are set aside of so many: looking at one of them costs as much as comparing dozens.
constexpr std::int64_t near_of(std::int64_t scores) { return std::clamp<std::int64_t>(scores / 8, 64, most_near); }

/// Whether the score of an order is subnormal. A processor told to take such numbers for zeros compares them as floats otherwise than their
/// orders do, so these are compared as orders.
constexpr bool is_subnormal(std::uint32_t order) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, score_of(order)) & 0x7fffffffu;
  return bits != 0 && bits < 0x00800000u;
}

/// How many scores reach an order.
inline std::int64_t count_reaching(const simd::rerank_table& kernels, std::span<const float> scores, std::uint32_t order) {
  if (is_subnormal(order)) return std::count_if(scores.begin(), scores.end(), [&](float x) { return score_order(x) >= order; });
  return kernels.count_at_least(scores.data(), static_cast<std::int64_t>(scores.size()), score_of(order));
}

/// Two borders between which the k-th largest score lies.
///
/// low         order that at least k scores reach, and how many they are
/// high        order that fewer reach, and how many
struct border {
  std::uint32_t low = score_order(-infinity);
  std::uint32_t high = score_order(infinity) + 1;
  std::int64_t reach_low = 0;
  std::int64_t reach_high = 0;

  std::int64_t between() const { return reach_low - reach_high; }

  void look_at(const simd::rerank_table& kernels, std::span<const float> scores, std::int64_t k, std::uint32_t order) {
    if (order <= low || order >= high) return;
    const std::int64_t reach = count_reaching(kernels, scores, order);
    (reach >= k ? low : high) = order;
    (reach >= k ? reach_low : reach_high) = reach;
  }
};

/// The borders of a few scores, brought together until `k` reach the lower one, or only ties lie between them.
inline border narrowed(const simd::rerank_table& kernels, std::span<const float> scores, std::int64_t k, border b) {
  while (b.reach_low > k && b.high - b.low > 1) b.look_at(kernels, scores, k, b.low + (b.high - b.low) / 2);
  return b;
}

/// Borders with at most `near` scores between them, or only one order: guesses from a sample first, then bisection.
inline border find_border(const simd::rerank_table& kernels, std::span<const float> scores, std::int64_t k, std::int64_t real,
                          std::int64_t near) {
  constexpr std::size_t samples = 128;
  border b;
  b.reach_low = real;
  if (b.between() <= near) return b;
  float sample[samples];
  for (std::size_t i = 0; i < samples; ++i) sample[i] = scores[i * scores.size() / samples];
  const double rank = static_cast<double>(k) / static_cast<double>(scores.size()) * samples, spread = 2 * std::sqrt(rank) + 2;
  for (const double guess : {rank + spread, rank - spread}) {
    if (guess < 1 || guess > samples || b.between() <= near) continue;
    border all;
    all.reach_low = samples;
    b.look_at(kernels, scores, k, narrowed(kernels, sample, static_cast<std::int64_t>(guess), all).low);
  }
  while (b.between() > near && b.high - b.low > 1) b.look_at(kernels, scores, k, b.low + (b.high - b.low) / 2);
  return b;
}

/// Calls visit(t) for the positions of scores that reach `order`, ascending, until it returns false.
template <class Visit>
void for_each_reaching(const simd::rerank_table& kernels, std::span<const float> scores, std::uint32_t order, const Visit& visit) {
  if (is_subnormal(order)) {
    for (std::size_t t = 0; t < scores.size(); ++t) {
      if (score_order(scores[t]) >= order && !visit(t)) return;
    }
    return;
  }
  std::int32_t found[piece];
  const auto n = static_cast<std::int64_t>(scores.size());
  for (std::int64_t first = 0; first < n; first += piece) {
    const std::int64_t count =
        kernels.take_at_least(scores.data() + first, std::min(piece, n - first), score_of(order), static_cast<std::int32_t>(first), found);
    for (std::int64_t i = 0; i < count; ++i) {
      if (!visit(static_cast<std::size_t>(found[i]))) return;
    }
  }
}

/// Takes all scores that reach `high`, and of those that reach `low` alone the first `ties`. Returns how many.
template <class Position>
std::int64_t take_in_order(const simd::rerank_table& kernels, std::span<const float> scores, const border& b, std::int64_t k,
                           Position* positions) {
  std::int64_t ties = k - b.reach_high, taken = 0;
  for_each_reaching(kernels, scores, b.low, [&](std::size_t t) {
    if (score_order(scores[t]) >= b.high || ties-- > 0) {
      positions[taken++] = static_cast<Position>(t);
    }
    return taken < k;
  });
  return taken;
}

/// Takes all scores that reach `high`, and the best of the most_near at most between the borders, k in all. Returns how many.
template <class Position>
std::int64_t take_near(const simd::rerank_table& kernels, std::span<const float> scores, const border& b, std::int64_t k,
                       Position* positions) {
  Position near[most_near];
  float values[most_near];
  std::int64_t taken = 0, n = 0;
  for_each_reaching(kernels, scores, b.low, [&](std::size_t t) {
    if (score_order(scores[t]) >= b.high) {
      positions[taken++] = static_cast<Position>(t);
    } else {
      near[n] = static_cast<Position>(t);
      values[n++] = scores[t];
    }
    return true;
  });
  const std::int64_t wanted = k - taken;
  const border c = narrowed(kernels, {values, static_cast<std::size_t>(n)}, wanted, {b.low, b.high, n, 0});
  std::int64_t ties = wanted - c.reach_high, chosen = 0;
  for (std::int64_t i = 0; i < n; ++i) {  // without branches: which ones are chosen is as good as random
    const std::uint32_t here = score_order(values[i]);
    const bool above = here >= c.high, tie = !above & (here >= c.low) & (ties > 0);
    ties -= tie ? 1 : 0;
    near[chosen] = near[i];
    chosen += (above | tie) ? 1 : 0;
  }
  const std::int64_t all = taken + chosen;
  for (std::int64_t to = all; chosen > 0; --to)  // from the end, where there is room
    positions[to - 1] = taken > 0 && positions[taken - 1] > near[chosen - 1] ? positions[--taken] : near[--chosen];
  return all;
}

}  // namespace host_top_k

/// Positions of the k largest scores.
///
/// what        score a goes before score b if it is larger, or equal at a lower position; NaN is never taken
/// shapes      scores (C), C < 2^31; positions (at least min(k, C)): the first `taken` are written, ascending
/// cost        passes that only compare: mostly four, and at most 34; no sort, no memory; one thread: callers
///             have many heads
/// exactness   exact
/// errors      usage_error for a negative k, for too many scores, or too few positions
template <class Position>
top_k_result top_k(const host&, std::span<const float> scores, std::int64_t k, std::span<Position> positions,
                   call_site where = call_site::here()) {
  const auto count = static_cast<std::int64_t>(scores.size());
  require_range("top_k: k", k, 0, INT64_MAX, where);
  require_range("top_k: scores", count, 0, INT32_MAX, where);
  require_range("top_k: positions", static_cast<std::int64_t>(positions.size()), std::min(k, count), INT64_MAX, where);
  using namespace host_top_k;
  const simd::rerank_table& kernels = simd::rerank_kernels();
  const std::int64_t real = kernels.count_at_least(scores.data(), count, -infinity);
  const std::int64_t nans = count - real, wanted = std::min(k, real);
  if (wanted == 0) return {0, nans};
  const std::int64_t near = near_of(count);
  const border b = find_border(kernels, scores, wanted, real, near);
  if (b.between() <= near) return {take_near(kernels, scores, b, wanted, positions.data()), nans};
  return {take_in_order(kernels, scores, b, wanted, positions.data()), nans};
}

}  // namespace kvx
