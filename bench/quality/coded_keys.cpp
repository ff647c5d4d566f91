#include "coded_keys.hpp"

#include <kvx/index/host/group_rule.hpp>
#include <kvx/index/host/sign_buckets.hpp>
#include <kvx/rerank/host/rsq_ip.hpp>
#include <kvx/sketch/host/key_code.hpp>
#include <kvx/sketch/host/top_k.hpp>
#include <kvx/transform/srht.hpp>

#include <cmath>
#include <numeric>

namespace quality {
namespace {

const kvx::host exec{.threads = 1};

kvx::memory_block memory_of(std::int64_t bytes) { return {std::pmr::new_delete_resource(), bytes}; }
std::span<std::byte> whole(const kvx::memory_block& block) { return {block.data(), static_cast<std::size_t>(block.size())}; }

/// Logits (G, ids) from codes of 4 or 8 bits.
void code_logits(const kvx::key_sketch& sketch, const kvx::head_view<float>& from, const kvx::group_queries& queries,
                 std::span<const std::int32_t> ids, kvx::tensor_view<float, 2> logits) {
  const auto with = [&]<int Bits>(kvx::rsq_ip<Bits> policy) {
    const auto scratch = memory_of(kvx::rerank_scratch(exec, policy, from.rows.key_dim, logits.extents[0]));
    kvx::rerank(exec, policy, sketch, from, queries, ids, logits, whole(scratch));
  };
  if (sketch.bits == 8) {
    with(kvx::rsq_ip<8>{});
  } else {
    with(kvx::rsq_ip<4>{});
  }
}

}  // namespace

coded_keys::coded_keys(std::span<const float> keys, int dim, const kvx::key_sketch& sketch, std::span<const float> balance, int page_tokens)
    : dim_(dim), page_{page_tokens, dim, dim}, sketch_(sketch), balance_(balance.begin(), balance.end()) {
  const auto tokens = static_cast<std::int64_t>(keys.size()) / dim;
  const std::int64_t count = tokens / page_tokens;
  const auto columns = kvx::sketch_columns(sketch, page_);
  for (std::size_t c = 0; c < columns.size(); ++c) {
    memory_[c] = memory_of(columns[c].pitch() * count);
    columns_[c] = {memory_[c].data(), columns[c].pitch(), 1};
  }
  pages_.resize(static_cast<std::size_t>(count));
  std::iota(pages_.begin(), pages_.end(), 0);
  const auto encoder = kvx::make_key_encoder<float>(sketch, dim);
  for (std::int64_t p = 0; p < count; ++p) {
    kvx::encode_page(encoder, keys.data() + p * page_tokens * dim, dim, page_tokens, balance_.empty() ? nullptr : balance_.data(),
                     kvx::code_of<true>(columns_, p, 0));
  }
}

std::vector<float> coded_keys::rotated(std::span<const float> queries) const {
  std::vector<float> q(queries.begin(), queries.end());
  const auto dim = static_cast<std::size_t>(dim_);
  for (std::size_t i = 0; i < q.size(); i += dim) {
    for (std::size_t d = 0; d < balance_.size(); ++d) q[i + d] /= balance_[d];
    kvx::rotate(q.data() + i, dim, sketch_.seed);
  }
  return q;
}

std::vector<std::int32_t> coded_keys::candidates(std::span<const float> queries, const searched& zone, const kvx::bucket_scoring& by,
                                                 double fraction, double window) const {
  const auto turned = rotated(queries);
  const std::int64_t group = static_cast<std::int64_t>(queries.size()) / dim_;
  const kvx::tensor_view<const float, 2> plain(queries.data(), group, dim_), codes(turned.data(), group, dim_);
  const kvx::search_breadth breadth{.fraction = fraction, .per_kept = 0, .window = window};
  std::vector<std::int32_t> found(static_cast<std::size_t>(kvx::candidate_count(breadth, by, zone.size(), 0)));
  const auto scratch = memory_of(kvx::search_bytes(sketch_, by, page_, static_cast<int>(group), zone.size()));
  const std::int64_t count = kvx::search_buckets(exec, sketch_, by, {page_, columns_, 0, pages_.data(), zone.begin, zone.end},
                                                 {codes, plain, nullptr, 1 / std::sqrt(static_cast<float>(dim_))}, breadth,
                                                 static_cast<std::int64_t>(found.size()), found.data(), whole(scratch));
  found.resize(static_cast<std::size_t>(count));
  return found;
}

std::vector<float> coded_keys::logits(std::span<const float> queries, std::span<const std::int32_t> ids) const {
  const auto turned = rotated(queries);
  const std::int64_t group = static_cast<std::int64_t>(queries.size()) / dim_;
  std::vector<float> logits(ids.size() * static_cast<std::size_t>(group));
  kvx::head_view<float> from;
  from.rows.heads = 1;
  from.rows.page_tokens = page_.tokens;
  from.rows.key_dim = from.rows.value_dim = dim_;
  from.columns = columns_;
  from.pages = pages_.data();
  const kvx::tensor_view<const float, 2> plain(queries.data(), group, dim_), codes(turned.data(), group, dim_);
  code_logits(sketch_, from, {plain, codes, 0}, ids, kvx::tensor_view<float, 2>(logits.data(), group, ids.size()));
  return logits;
}

std::vector<std::int32_t> coded_keys::best_by_code(std::span<const float> queries, const searched& zone, kvx::group_rule rule,
                                                   std::span<const float> resident, std::int64_t keep) const {
  const std::int64_t group = static_cast<std::int64_t>(queries.size()) / dim_;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(zone.size()));
  std::iota(ids.begin(), ids.end(), static_cast<std::int32_t>(zone.begin));
  std::vector<float> scores(ids.size());
  const std::vector<float> by_head = logits(queries, ids);
  const auto scratch = memory_of(kvx::group_scores_scratch(exec, rule, group, zone.size()));
  kvx::group_scores(exec, rule, kvx::tensor_view<const float, 2>(by_head.data(), group, zone.size()), resident, scores, whole(scratch));
  std::vector<std::int32_t> best(static_cast<std::size_t>(std::min(keep, zone.size())));
  const kvx::top_k_result result = kvx::top_k<std::int32_t>(exec, scores, keep, best);
  best.resize(static_cast<std::size_t>(result.taken));
  for (std::int32_t& t : best) t += static_cast<std::int32_t>(zone.begin);
  return best;
}

}  // namespace quality
