#pragma once
// A batch that is attended to in tiers, and what that is by its definition: in double, one token after the other.

#include "divided_budget.hpp"
#include "retrieve_case.hpp"
#include "tiered_reference.hpp"
#include "value_code.hpp"

#include <kvx/attend/host/retrieve.hpp>
#include <kvx/attend/tiers.hpp>
#include <kvx/sketch/host/tiered_writer.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace kvx::test {

/// Rows, queries and codes; change them through `rows` and `q`, then encode().
template <int ValueBits>
class tiered_case : public retrieve_case {
 public:
  static constexpr rsq_ip<4, tiers{.value_bits = ValueBits, .tail = true}> reranker = {};

  explicit tiered_case(const retrieve_shape& s) : retrieve_case(s) {
    std::int64_t pages = 0;
    for (const std::int64_t n : s.rows.lengths) pages += ceil_div(n, std::int64_t{s.rows.page_tokens});
    for (int c = 0; c < value_column_count; ++c) {
      const column of{value_block_bytes(ValueBits, page(), static_cast<value_column>(c))};
      auto& bytes = value_bytes_[static_cast<std::size_t>(c)];
      bytes.assign(static_cast<std::size_t>(of.pitch() * s.rows.heads * pages), std::byte{0xff});  // poison
      values_[static_cast<std::size_t>(c)] = {of.block_bytes > 0 ? bytes.data() : nullptr, of.pitch(), s.rows.heads, pages * of.pitch()};
    }
    encode();
  }

  void encode() {
    const tiered_writer<float> writer{make_key_encoder<float>(shape_.sketch, shape_.rows.key_dim),
                                      make_value_encoder<float, ValueBits>(shape_.rows.value_dim, shape_.sketch.seed)};
    for (std::size_t i = 0; i < items_.size(); ++i) {
      for (std::int64_t j = 0; j < end_of_zone(i) / shape_.rows.page_tokens; ++j) {
        const std::int32_t id = items_[i].pages[j];
        for (int h = 0; h < shape_.rows.heads; ++h) {
          std::array<std::byte*, tiered_column_count> blocks{};
          for (std::size_t c = 0; c < columns_.size(); ++c) blocks[c] = columns_[c].data != nullptr ? columns_[c].at(id, h) : nullptr;
          for (std::size_t c = 0; c < values_.size(); ++c)
            blocks[first_value_column + c] = values_[c].data != nullptr ? values_[c].at(id, h) : nullptr;
          encode_page(host{.threads = 1}, writer, rows.view(), id, h, blocks, static_cast<const float*>(nullptr));
        }
      }
    }
  }

  /// The library's answer. Scratch is exactly as large as promised and full of NaN.
  template <class Reranker = rsq_ip<4, tiers{.value_bits = ValueBits, .tail = true}>>
  retrieved attend(const retrieve_options& o, const host& exec = {.threads = 1}) const {
    const Reranker policy{shape_.rule};
    retrieved r{std::vector<float>(static_cast<std::size_t>(tokens() * heads() * shape_.rows.value_dim), quiet_nan),
                std::vector<float>(static_cast<std::size_t>(tokens() * heads()), quiet_nan)};
    const std::int64_t longest = *std::max_element(shape_.rows.lengths.begin(), shape_.rows.lengths.end());
    std::vector<std::byte> scratch(
        static_cast<std::size_t>(attend_retrieved_scratch(exec, shape_.sketch, shape_.by, policy, page(), shape_.rows.heads,
                                                          static_cast<int>(heads()), tokens(), longest)),
        std::byte{0xff});
    attend_retrieved<float, float>(exec,
                                   {.rows = rows.view(),
                                    .columns = columns_,
                                    .sketch = shape_.sketch,
                                    .zones = shape_.cut,
                                    .rows_of = items_,
                                    .columns_of = items_,
                                    .balances = {},
                                    .values = values_},
                                   shape_.by, policy, page(), queries(),
                                   tensor_view<float, 3>(r.out.data(), tokens(), heads(), shape_.rows.value_dim),
                                   tensor_view<float, 2>(r.lse.data(), tokens(), heads()), o, scratch);
    return r;
  }

  /// Rows alone, a budget of keep rows a head that the heads of a layer share: a full sort of all their scores, ties to the lowest head and
  /// token. And how many rows each (entry, new token, head) got.
  dense_reference pooled(const retrieve_options& o, std::vector<std::int64_t>& counts) const {
    dense_reference r;
    counts.clear();
    for (std::size_t i = 0; i < items_.size(); ++i) {
      for (int query = 0; query < shape_.queries; ++query) {
        std::vector<ranking> of_heads;
        std::vector<std::vector<float>> of_tokens;
        for (int head = 0; head < shape_.rows.heads; ++head) {
          of_heads.push_back(rank(i, query, head, o));
          of_tokens.push_back(of_heads.back().score);
        }
        const auto parts = divided_budget(of_tokens, o.keep * shape_.rows.heads);
        for (int head = 0; head < shape_.rows.heads; ++head) {
          std::vector<std::int32_t> ids;
          for (const std::size_t c : parts[static_cast<std::size_t>(head)]) ids.push_back(of_heads[static_cast<std::size_t>(head)].ids[c]);
          counts.push_back(std::ssize(ids));
          const auto part = attend_chosen(rows.view(), items_[i].pages, head, group(items_[i].first + query, head),
                                          {residents(i, query), ids}, {o.scale, o.soft_cap});
          r.out.insert(r.out.end(), part.out.begin(), part.out.end());
          r.lse.insert(r.lse.end(), part.lse.begin(), part.lse.end());
        }
      }
    }
    return r;
  }

  /// By the definition. Every V is read, whatever options say of skipping.
  tiered_reference in_tiers(const retrieve_options& o) const {
    tiered_reference r;
    std::vector<std::int64_t> parts;
    if (o.budget.of == retrieve_budget::kind::layer) (void)pooled(o, parts);
    std::size_t unit = 0;
    for (std::size_t i = 0; i < items_.size(); ++i) {
      for (int query = 0; query < shape_.queries; ++query) {
        for (int head = 0; head < shape_.rows.heads; ++head, ++unit) add_unit(i, query, head, o, parts.empty() ? o.keep : parts[unit], r);
      }
    }
    return r;
  }

 private:
  /// The candidates of a group, ascending, with what ranks them.
  struct ranking {
    std::vector<char> proposed;  // (end of the zone)
    std::vector<std::int32_t> ids;  // (C)
    std::vector<float> logits;  // (G, C)
    std::vector<float> score;  // (C)
  };

  bool found(const batch_item& of, int head, std::int64_t t) const {
    return code_of(columns_, of.pages[t / shape_.rows.page_tokens], head).norms[t % shape_.rows.page_tokens] != never_found;
  }
  /// A page that may have a tail: all of it in the zone, and every key found.
  bool whole(const batch_item& of, int head, std::int64_t begin, std::int64_t end, std::int64_t j) const {
    const std::int64_t P = shape_.rows.page_tokens;
    bool all = j * P >= begin && (j + 1) * P <= end;
    for (std::int64_t t = j * P; all && t < (j + 1) * P; ++t) all = found(of, head, t);
    return all;
  }
  std::int64_t left(const std::vector<char>& candidate, std::int64_t j) const {
    const std::int64_t P = shape_.rows.page_tokens;
    return P - std::count(candidate.begin() + j * P, candidate.begin() + (j + 1) * P, 1);
  }

  ranking rank(std::size_t i, int query, int head, const retrieve_options& o) const {
    const int G = shape_.group, D = shape_.rows.key_dim, Dv = shape_.rows.value_dim, P = shape_.rows.page_tokens;
    const batch_item& of = items_[i];
    const auto resident = residents(i, query);
    const std::int64_t begin = resident[0].end, end = resident[1].begin;
    const float scale = o.scale != 0 ? o.scale : 1 / std::sqrt(static_cast<float>(D));
    const tensor_view<const float, 2> plain = group(of.first + query, head);
    std::vector<float> turned(plain.data, plain.data + G * D), lse;
    for (int g = 0; g < G; ++g) rotate(turned.data() + g * D, static_cast<std::size_t>(D), shape_.sketch.seed);
    const tensor_view<const float, 2> rotated(static_cast<const float*>(turned.data()), G, D);
    std::vector<softmax_state> states(static_cast<std::size_t>(G));
    std::vector<float> sums(static_cast<std::size_t>(G * Dv));
    const host one{.threads = 1};
    std::vector<std::byte> scratch(static_cast<std::size_t>(attend_rows_scratch(one, rows.view(), G, of.length)));
    attend_rows(one, rows.view(), of.pages, head, plain, {resident, {}}, {scale, o.soft_cap}, std::span(states),
                tensor_view<float, 2>(sums.data(), G, Dv), scratch);
    for (const softmax_state& s : states) lse.push_back(s.lse());

    ranking r;
    const bucket_zone zone{page(), columns_, head, of.pages, begin, end};
    const std::int64_t wanted = candidate_count(o.breadth, shape_.by, end - begin, o.keep);
    const scores coarse = plain_sign_sums(shape_.sketch, shape_.by.of, zone, {rotated, plain, lse.data(), scale}).all();
    r.proposed.assign(static_cast<std::size_t>(end), 0);
    for (const std::int32_t t : plain_selection(coarse, begin, wanted)) r.proposed[static_cast<std::size_t>(t)] = 1;
    const auto with_pages_without_tail = [&](bool broken_too) {
      std::vector<char> all = r.proposed;
      for (std::int64_t j = begin / P; j * P < end; ++j) {
        if (whole(of, head, begin, end, j) && left(r.proposed, j) >= fewest_in_tail) continue;
        const std::int64_t first = std::max(begin, j * P), last = std::min(end, (j + 1) * P);
        bool broken = false;
        for (std::int64_t t = first; t < last; ++t) broken = broken || !found(of, head, t);
        for (std::int64_t t = first; (broken_too || !broken) && t < last; ++t) all[static_cast<std::size_t>(t)] = found(of, head, t);
      }
      return all;
    };
    if (ValueBits > 0 && o.others.coded && o.others.tail) {
      const std::vector<char> all = with_pages_without_tail(true);
      r.proposed = std::count(all.begin(), all.end(), 1) <= most_in_codes(end - begin, wanted, P) ? all : with_pages_without_tail(false);
    }
    for (std::int64_t t = begin; t < end; ++t) {
      if (r.proposed[static_cast<std::size_t>(t)] != 0) r.ids.push_back(static_cast<std::int32_t>(t));
    }
    r.logits = code_logits<4>(shape_.sketch, head_view<float>{rows.view(), columns_, of.pages, head}, {plain, rotated, scale}, r.ids);
    r.score.resize(r.ids.size());
    scratch.resize(static_cast<std::size_t>(group_scores_scratch(one, shape_.rule, G, std::ssize(r.ids))));
    group_scores(one, shape_.rule, tensor_view<const float, 2>(r.logits.data(), G, std::ssize(r.ids)), lse, r.score, scratch);
    return r;
  }

  void add_unit(std::size_t i, int query, int head, const retrieve_options& o, std::int64_t keep, tiered_reference& r) const {
    const int G = shape_.group, D = shape_.rows.key_dim, Dv = shape_.rows.value_dim, P = shape_.rows.page_tokens;
    const batch_item& of = items_[i];
    const auto resident = residents(i, query);
    const std::int64_t begin = resident[0].end, end = resident[1].begin;
    const float scale = o.scale != 0 ? o.scale : 1 / std::sqrt(static_cast<float>(D));
    const tensor_view<const float, 2> plain = group(of.first + query, head);
    const ranking ranked = rank(i, query, head, o);
    const std::vector<std::int32_t>& ids = ranked.ids;
    const std::vector<float>& logits = ranked.logits;
    std::vector<char> candidate = ranked.proposed;
    std::vector<std::size_t> order(ids.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return ranked.score[a] > ranked.score[b]; });
    order.resize(std::min(order.size(), static_cast<std::size_t>(keep)));
    std::vector<char> kept(ids.size(), 0);
    for (const std::size_t c : order) kept[c] = 1;
    const bool coded = ValueBits > 0 && o.others.coded, tail = o.others.tail;
    if (!coded) {
      std::fill(candidate.begin(), candidate.end(), 0);
      for (const std::size_t c : order) candidate[static_cast<std::size_t>(ids[c])] = 1;
    }

    const auto capped = [&](double x) {
      return o.soft_cap > 0 ? static_cast<double>(o.soft_cap) * std::tanh(x / static_cast<double>(o.soft_cap)) : x;
    };
    for (int g = 0; g < G; ++g) {
      std::vector<weighted> all;
      const auto exact = [&](std::int64_t t) {
        const float* const k = rows.view().key.at(of.pages[t / P], head, t % P);
        const float* const v = rows.view().value.at(of.pages[t / P], head, t % P);
        double dot = 0;
        for (int d = 0; d < D; ++d) dot += static_cast<double>(*plain.at(g, d)) * static_cast<double>(k[d]);
        all.push_back({capped(dot * static_cast<double>(scale)), 1, std::vector<double>(v, v + Dv)});
      };
      for (const token_range& range : resident) {
        for (std::int64_t t = range.begin; t < range.end; ++t) exact(t);
      }
      std::vector<double> deviation(static_cast<std::size_t>(ceil_div(end, std::int64_t{P})));  // of the members' logits from their page's
      const auto term = [&](std::int64_t j) {
        const bf16* const mean = code_of(columns_, of.pages[j], head).means;
        double dot = 0;
        for (int d = 0; d < D; ++d) dot += static_cast<double>(*plain.at(g, d)) * static_cast<double>(to_float(mean[d]));
        return dot * static_cast<double>(scale);
      };
      const auto mean_value = [&](std::int64_t j) {
        const bf16* const mean = values_of(values_, of.pages[j], head).means;
        std::vector<double> v;
        for (int d = 0; d < Dv; ++d) v.push_back(static_cast<double>(to_float(mean[d])));
        return v;
      };
      for (std::size_t c = 0; c < ids.size(); ++c) {
        const std::int64_t t = ids[c], j = t / P;
        const double logit = static_cast<double>(logits[static_cast<std::size_t>(g) * ids.size() + c]);
        if (candidate[static_cast<std::size_t>(t)] != 0) deviation[static_cast<std::size_t>(j)] += logit - term(j);
        if (kept[c] != 0) {
          exact(t);
        } else if (coded) {
          if constexpr (ValueBits > 0) {
            const page_values<false> page = values_of(values_, of.pages[j], head);
            const std::vector<double> v =
                decoded_value<ValueBits>(page.codes + t % P * value_row_bytes(ValueBits, Dv), page.scales[t % P], Dv, shape_.sketch.seed);
            all.push_back({capped(logit), 1, mean_value(j)});
            all.back().add_code(v);
            r.coded += g == 0 ? 1 : 0;
          }
        }
      }
      for (std::int64_t j = begin / P; tail && j * P < end; ++j) {
        if (!whole(of, head, begin, end, j) || left(candidate, j) < fewest_in_tail) continue;
        const auto n = static_cast<double>(left(candidate, j));
        all.push_back({capped(term(j) - deviation[static_cast<std::size_t>(j)] / n), n, mean_value(j)});
        r.tails += g == 0 ? 1 : 0;
        r.tail_tokens += g == 0 ? left(candidate, j) : 0;
      }

      add_head(all, Dv, r);
    }
  }

  std::array<std::vector<std::byte>, value_column_count> value_bytes_;

 protected:
  value_columns values_;
};

}  // namespace kvx::test
