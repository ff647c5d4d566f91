#pragma once
// A batch whose retrieval zones are coded, what attend_retrieved makes of it, and what the references of its stages make of it.

#include "chosen_rows.hpp"
#include "code_logits.hpp"
#include "dense_attention.hpp"
#include "paged_rows.hpp"
#include "sign_buckets.hpp"

#include <kvx/attend/host/retrieve.hpp>
#include <kvx/core/math.hpp>
#include <kvx/sketch/host/key_code.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <vector>

namespace kvx::test {

/// queries     new tokens of each sequence
struct retrieve_shape {
  paged_shape rows;
  int group = 2;
  int queries = 1;
  key_sketch sketch = {.balance = 0};
  bucket_scoring by = {};
  group_rule rule = {};
  kvx::zones cut = {.sink = 4, .local = 32};
};

/// Outputs of a batch.
struct retrieved {
  std::vector<float> out;  // (N, Q, Dv)
  std::vector<float> lse;  // (N, Q)
  friend bool operator==(const retrieved&, const retrieved&) = default;
};

/// Rows and queries in float; change them through `rows` and `q`, then encode().
class retrieve_case {
 public:
  paged_rows<float> rows;
  std::vector<float> q;  // (N, Q, D)

  explicit retrieve_case(const retrieve_shape& s) : rows(s.rows), shape_(s) {
    const std::int64_t P = s.rows.page_tokens;
    std::int64_t pages = 0;
    for (std::size_t i = 0; i < s.rows.lengths.size(); ++i) {
      items_.push_back(rows.item(i, s.queries, static_cast<std::int64_t>(i) * s.queries));
      pages += (s.rows.lengths[i] + P - 1) / P;
    }
    const auto columns = sketch_columns(s.sketch, page());
    for (std::size_t c = 0; c < columns.size(); ++c) {
      bytes_[c].assign(static_cast<std::size_t>(columns[c].pitch() * s.rows.heads * pages), std::byte{0xff});  // poison
      columns_[c] = {columns[c].block_bytes > 0 ? bytes_[c].data() : nullptr, columns[c].pitch(), s.rows.heads, pages * columns[c].pitch()};
    }
    std::mt19937 random(s.rows.seed + 1);
    std::normal_distribution<float> normal;
    q.resize(static_cast<std::size_t>(tokens() * heads() * s.rows.key_dim));
    for (float& x : q) x = normal(random);
    encode();
  }

  std::int64_t tokens() const { return std::ssize(items_) * shape_.queries; }
  std::int64_t heads() const { return std::int64_t{shape_.rows.heads} * shape_.group; }
  const batch_item& item(std::size_t i) const { return items_[i]; }

  /// End of the zone of sequence i, as all its new tokens see it, and what is attended to anyway.
  std::int64_t end_of_zone(std::size_t i) const { return edge(shape_.cut, items_[i].length - shape_.queries, shape_.rows.page_tokens); }

  std::array<token_range, 2> residents(std::size_t i, std::int64_t query) const {
    const std::int64_t n = items_[i].length - shape_.queries + query + 1, end = std::min(end_of_zone(i), n);
    return {{{0, std::min<std::int64_t>(shape_.cut.sink, end)}, {end, n}}};
  }

  /// Writes the codes of every page of every zone.
  void encode() {
    const auto encoder = make_key_encoder<float>(shape_.sketch, shape_.rows.key_dim);
    for (std::size_t i = 0; i < items_.size(); ++i) {
      std::vector<std::int64_t> ids;
      for (std::int64_t page = 0; page < end_of_zone(i) / shape_.rows.page_tokens; ++page) ids.push_back(items_[i].pages[page]);
      for (int h = 0; h < shape_.rows.heads; ++h)
        encode_keys(host{.threads = 1}, encoder, rows.view(), ids.data(), std::ssize(ids), h, nullptr, columns_);
    }
  }

  /// The library's answer. Scratch is exactly as large as promised and full of NaN.
  retrieved attend(const retrieve_options& o, const host& exec = {.threads = 1}) const {
    retrieved r{std::vector<float>(static_cast<std::size_t>(tokens() * heads() * shape_.rows.value_dim), quiet_nan),
                std::vector<float>(static_cast<std::size_t>(tokens() * heads()), quiet_nan)};
    const rsq_ip<4> reranker{shape_.rule};
    const std::int64_t longest = *std::max_element(shape_.rows.lengths.begin(), shape_.rows.lengths.end());
    std::vector<std::byte> scratch(
        static_cast<std::size_t>(attend_retrieved_scratch(exec, shape_.sketch, shape_.by, reranker, page(), shape_.rows.heads,
                                                          static_cast<int>(heads()), tokens(), longest)),
        std::byte{0xff});
    attend_retrieved<float, float>(exec,
                                   {.rows = rows.view(),
                                    .columns = columns_,
                                    .sketch = shape_.sketch,
                                    .zones = shape_.cut,
                                    .rows_of = items_,
                                    .columns_of = items_,
                                    .balances = {}},
                                   shape_.by, reranker, page(), queries(),
                                   tensor_view<float, 3>(r.out.data(), tokens(), heads(), shape_.rows.value_dim),
                                   tensor_view<float, 2>(r.lse.data(), tokens(), heads()), o, scratch);
    return r;
  }

  dense_reference dense(const retrieve_options& o) const {
    return dense_attention(rows.view(), std::span<const attend_item>(items_), queries(), {.scale = o.scale, .soft_cap = o.soft_cap});
  }

  /// The tokens that new token `query` of sequence i retrieves for a KV head: references of scan, selection and reranking, then a full
  /// sort of the group's scores, ties to the lowest token.
  std::vector<std::int32_t> selected(std::size_t i, std::int64_t query, int head, const retrieve_options& o) const {
    const int G = shape_.group, D = shape_.rows.key_dim;
    const batch_item& of = items_[i];
    const auto resident = residents(i, query);
    const std::int64_t begin = resident[0].end, end = resident[1].begin;
    const std::int64_t wanted = candidate_count(o.breadth, shape_.by, end - begin, o.keep);
    const float scale = o.scale != 0 ? o.scale : 1 / std::sqrt(static_cast<float>(D));
    const tensor_view<const float, 2> plain = group(of.first + query, head);
    std::vector<float> turned(plain.data, plain.data + G * D), lse;
    for (int g = 0; g < G; ++g) rotate(turned.data() + g * D, static_cast<std::size_t>(D), shape_.sketch.seed);
    const tensor_view<const float, 2> rotated(static_cast<const float*>(turned.data()), G, D);
    std::vector<softmax_state> states(static_cast<std::size_t>(G));
    std::vector<float> sums(static_cast<std::size_t>(G * shape_.rows.value_dim));
    const host one{.threads = 1};
    std::vector<std::byte> scratch(static_cast<std::size_t>(attend_rows_scratch(one, rows.view(), G, of.length)));
    attend_rows(one, rows.view(), of.pages, head, plain, {resident, {}}, {scale, o.soft_cap}, std::span(states),
                tensor_view<float, 2>(sums.data(), G, shape_.rows.value_dim), scratch);
    for (const softmax_state& s : states) lse.push_back(s.lse());

    const bucket_zone zone{page(), columns_, head, of.pages, begin, end};
    const scores coarse = shape_.by.score == bucket_scoring::rule::votes
                              ? plain_votes(shape_.sketch, zone, rotated, window_count(o.breadth, end - begin))
                              : plain_sign_sums(shape_.sketch, shape_.by.of, zone, {rotated, plain, lse.data(), scale}).all();
    std::vector<std::int32_t> ids = plain_selection(coarse, begin, wanted);
    if (std::ssize(ids) <= o.keep) return ids;
    const std::vector<float> logits =
        code_logits<4>(shape_.sketch, head_view<float>{rows.view(), columns_, of.pages, head}, {plain, rotated, scale}, ids);
    std::vector<float> score(ids.size());
    scratch.resize(static_cast<std::size_t>(group_scores_scratch(one, shape_.rule, G, std::ssize(ids))));
    group_scores(one, shape_.rule, tensor_view<const float, 2>(logits.data(), G, std::ssize(ids)), lse, score, scratch);
    std::vector<std::size_t> order;  // NaN scores are never taken
    for (std::size_t c = 0; c < ids.size(); ++c) {
      if (!is_nan(score[c])) order.push_back(c);
    }
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return score[a] > score[b]; });
    order.resize(std::min(order.size(), static_cast<std::size_t>(o.keep)));
    std::sort(order.begin(), order.end());
    std::vector<std::int32_t> best;
    for (const std::size_t c : order) best.push_back(ids[c]);
    return best;
  }

  /// Attention over {sink, selected, recent} in double.
  dense_reference expected(const retrieve_options& o) const {
    dense_reference r;
    for (std::size_t i = 0; i < items_.size(); ++i) {
      for (int query = 0; query < shape_.queries; ++query) {
        for (int head = 0; head < shape_.rows.heads; ++head) {
          const auto resident = residents(i, query);
          const auto ids = selected(i, query, head, o);
          const auto part = attend_chosen(rows.view(), items_[i].pages, head, group(items_[i].first + query, head), {resident, ids},
                                          {o.scale, o.soft_cap});
          r.out.insert(r.out.end(), part.out.begin(), part.out.end());
          r.lse.insert(r.lse.end(), part.lse.begin(), part.lse.end());
        }
      }
    }
    return r;
  }

 protected:
  page_shape page() const { return {shape_.rows.page_tokens, shape_.rows.key_dim, shape_.rows.value_dim}; }
  tensor_view<const float, 3> queries() const { return tensor_view<const float, 3>(q.data(), tokens(), heads(), shape_.rows.key_dim); }
  tensor_view<const float, 2> group(std::int64_t row, int head) const {
    return tensor_view<const float, 2>(queries().at(row, head * shape_.group, 0), shape_.group, shape_.rows.key_dim);
  }

  retrieve_shape shape_;
  std::vector<batch_item> items_;
  std::array<std::vector<std::byte>, sketch_column_count> bytes_;
  key_columns columns_;
};

/// The largest difference between an answer and its reference, in units of the tolerance: 2e-5 + 1e-6 of the value, as for dense attention.
inline double distance(const retrieved& got, const dense_reference& expected) {
  double worst = got.out.size() == expected.out.size() && got.lse.size() == expected.lse.size() ? 0 : 1e9;
  const auto compare = [&](float x, double y) {
    if (static_cast<double>(x) == y) return;
    const double error = std::abs(static_cast<double>(x) - y) / (2e-5 + 1e-6 * std::abs(y));
    worst = std::max(worst, std::isnan(error) ? 1e9 : error);
  };
  for (std::size_t i = 0; worst < 1e9 && i < got.out.size(); ++i) compare(got.out[i], expected.out[i]);
  for (std::size_t i = 0; worst < 1e9 && i < got.lse.size(); ++i) compare(got.lse[i], expected.lse[i]);
  return worst;
}

}  // namespace kvx::test
