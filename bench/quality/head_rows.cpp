#include "head_rows.hpp"

#include <kvx/backend/host.hpp>
#include <kvx/sketch/host/top_k.hpp>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace quality {
namespace {

/// Sum of products, in sixteen parts.
float dot(const float* a, const float* b, int dim) {
  constexpr int parts = 16;
  float sum[parts] = {};
  int d = 0;
  for (; d + parts <= dim; d += parts) {
    for (int i = 0; i < parts; ++i) sum[i] += a[d + i] * b[d + i];
  }
  for (; d < dim; ++d) sum[0] += a[d] * b[d];
  float all = 0;
  for (const float s : sum) all += s;
  return all;
}

constexpr std::int64_t learned_tokens = 1024;

}  // namespace

float head_rows::scale() const { return 1 / std::sqrt(static_cast<float>(dim)); }

std::vector<float> balance_of(const head_rows& head, const kvx::rope_pairs& pairs) {
  kvx::balance_moments moments(head.dim);
  for (std::int64_t t = sink; t < std::min(learned_tokens, head.tokens()); ++t) moments.add_key(head.key(t));
  for (std::size_t i = 0; i < head.early_queries.size(); i += static_cast<std::size_t>(head.dim)) {
    moments.add_query(head.early_queries.data() + i);
  }
  std::vector<float> a(static_cast<std::size_t>(head.dim));
  moments.balance(pairs, a.data());
  return a;
}

std::vector<float> exact_logits(const head_rows& head, std::size_t position) {
  const std::int64_t seen = head.positions[position] + 1;
  std::vector<float> logits;
  logits.reserve(static_cast<std::size_t>(head.group * seen));
  for (int g = 0; g < head.group; ++g) {
    for (std::int64_t t = 0; t < seen; ++t) logits.push_back(head.scale() * dot(head.query(position, g), head.key(t), head.dim));
  }
  return logits;
}

std::vector<std::int32_t> exact_best(std::span<const float> logits, int group, const searched& zone, std::int64_t count) {
  const std::int64_t seen = static_cast<std::int64_t>(logits.size()) / group;
  std::vector<float> means;
  for (std::int64_t t = zone.begin; t < zone.end; ++t) {
    double sum = 0;
    for (int g = 0; g < group; ++g) sum += static_cast<double>(logits[static_cast<std::size_t>(g * seen + t)]);
    means.push_back(static_cast<float>(sum / group));
  }
  std::vector<std::int32_t> best(static_cast<std::size_t>(std::min(count, zone.size())));
  kvx::top_k<std::int32_t>(kvx::host{.threads = 1}, means, count, best);
  for (std::int32_t& t : best) t += static_cast<std::int32_t>(zone.begin);
  return best;
}

double recall(std::span<const std::int32_t> wanted, std::span<const std::int32_t> found) {
  std::vector<std::int32_t> both;
  std::set_intersection(wanted.begin(), wanted.end(), found.begin(), found.end(), std::back_inserter(both));
  return static_cast<double>(both.size()) / static_cast<double>(wanted.size());
}

}  // namespace quality
