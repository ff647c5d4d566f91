#pragma once
// A batch over semantic pages that is attended to in tiers, and what that is by its definition.

#include "code_logits.hpp"
#include "dense_attention.hpp"
#include "paged_rows.hpp"
#include "retrieve_case.hpp"
#include "tiered_reference.hpp"
#include "value_code.hpp"

#include <kvx/attend/host/pages.hpp>
#include <kvx/backend/memory.hpp>
#include <kvx/index/block_columns.hpp>
#include <kvx/index/host/dci_tree.hpp>
#include <kvx/index/host/page_values.hpp>
#include <kvx/sketch/host/key_code.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <vector>

namespace kvx::test {

/// Rows and queries in float; change them through `rows` and `q`, then index().
template <int ValueBits>
class page_tiers_case {
 public:
  static constexpr dci_shape shape{.block = 32, .by = dci_shape::metric::keys};
  static constexpr zones cut{.sink = 16, .local = 16, .unit = shape.block};
  static constexpr key_sketch sketch{.bits = 4, .balance = 0};
  using tiered = rsq_ip<4, tiers{.value_bits = ValueBits, .tail = true}>;

  paged_rows<float> rows;
  std::vector<float> q;  // (N, Q, D)

  page_tiers_case(const paged_shape& s, int group, int queries = 1) : rows(s), dims_(s), group_(group), queries_(queries) {
    std::int64_t pages = 0;
    for (std::size_t i = 0; i < s.lengths.size(); ++i) {
      items_.push_back(rows.item(i, queries, static_cast<std::int64_t>(i) * queries));
      pages += ceil_div(s.lengths[i], std::int64_t{s.page_tokens});
    }
    const auto columns = block_columns(shape, true, sketch, {ValueBits, true}, page());
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const std::int64_t bytes = columns[c].pitch() * s.heads * pages;
      memory_.emplace_back(std::pmr::new_delete_resource(), std::max<std::int64_t>(64, bytes));
      std::memset(memory_.back().data(), 0xff, static_cast<std::size_t>(memory_.back().size()));  // poison
      side_[c] = {bytes > 0 ? memory_.back().data() : nullptr, columns[c].pitch(), s.heads, pages * columns[c].pitch()};
    }
    std::mt19937 random(s.seed + 1);
    std::normal_distribution<float> normal;
    q.resize(static_cast<std::size_t>(tokens() * heads() * s.key_dim));
    for (float& x : q) x = normal(random);
    index();
  }

  std::int64_t tokens() const { return std::ssize(items_) * queries_; }
  std::int64_t heads() const { return std::int64_t{dims_.heads} * group_; }
  token_zone zone(std::size_t i, std::int64_t query = 0) const { return zone_of(items_[i], 0, cut, dims_.page_tokens, query); }
  dci_head<float> head(std::size_t i, int h) const {
    return tree_head<float>(rows.view(), side_, items_[i].pages, items_[i].pages, h, cut.sink);
  }
  const block_column_arrays& columns() const { return side_; }
  const std::vector<batch_item>& items() const { return items_; }

  void index() {
    const auto keys = make_key_encoder<float>(sketch, dims_.key_dim);
    const auto values = make_value_encoder<float, ValueBits>(dims_.value_dim, sketch.seed);
    std::vector<float> memory(static_cast<std::size_t>(dims_.page_tokens * dims_.value_dim));
    for (std::size_t i = 0; i < items_.size(); ++i) {
      const std::int64_t end = zone(i).end / shape.block * shape.block, pages = end / dims_.page_tokens;
      std::vector<std::int64_t> ids(items_[i].pages, items_[i].pages + pages);
      const memory_block scratch(std::pmr::new_delete_resource(), index_blocks_bytes(shape, dims_.page_tokens, dims_.key_dim, end));
      for (int h = 0; h < dims_.heads; ++h) {
        encode_keys(host{.threads = 1}, keys, rows.view(), ids.data(), pages, h, nullptr, codes_of(side_));
        index_blocks(host{}, shape, head(i, h), 0, end / shape.block, {}, {scratch.data(), static_cast<std::size_t>(scratch.size())});
        for (std::int64_t j = 0; j < pages; ++j)
          encode_page_values(values, sketch, shape, head(i, h), j, codes_of(side_), page_values_of(side_), memory.data());
      }
    }
  }

  /// The library's answer. Scratch is exactly as large as promised and full of NaN.
  template <class Reranker = tiered>
  retrieved attend(const page_options& o, const host& exec = {.threads = 1}) const {
    const Reranker policy;
    const dci_tree<shape> tree;
    const tensor_view<const float, 3> asked(q.data(), tokens(), heads(), dims_.key_dim);
    retrieved r{std::vector<float>(static_cast<std::size_t>(tokens() * heads() * dims_.value_dim), quiet_nan),
                std::vector<float>(static_cast<std::size_t>(tokens() * heads()), quiet_nan)};
    const std::int64_t longest = *std::max_element(dims_.lengths.begin(), dims_.lengths.end());
    std::vector<std::byte> scratch(static_cast<std::size_t>(attend_pages_scratch(exec, true, policy, page(), dims_.heads,
                                                                                 static_cast<int>(heads()), tokens(), longest)),
                                   std::byte{0xff});
    const std::vector<reservation::part> none(items_.size());
    const page_layer<float, shape> layer{&tree, rows.view(), side_, sketch, cut, items_, items_, none, nullptr, nullptr, 0};
    attend_pages<true, float, float>(exec, layer, policy, page(), asked,
                                     tensor_view<float, 3>(r.out.data(), tokens(), heads(), dims_.value_dim),
                                     tensor_view<float, 2>(r.lse.data(), tokens(), heads()), o, scratch);
    return r;
  }

  dense_reference dense() const {
    return dense_attention(rows.view(), std::span<const attend_item>(items_),
                           tensor_view<const float, 3>(q.data(), tokens(), heads(), dims_.key_dim), {});
  }

  /// By the definition. Every V is read, whatever options say of skipping.
  tiered_reference in_tiers(const page_options& o) const {
    tiered_reference r;
    for (std::size_t i = 0; i < items_.size(); ++i) {
      for (int query = 0; query < queries_; ++query) {
        for (int h = 0; h < dims_.heads; ++h) add_unit(i, query, h, o, r);
      }
    }
    return r;
  }

 private:
  page_shape page() const { return {dims_.page_tokens, dims_.key_dim, dims_.value_dim}; }

  /// Positions of the members of a semantic page.
  static std::vector<std::int32_t> members_of(const dci_head<float>& of, std::int64_t j) {
    std::vector<std::int32_t> members;
    const std::int64_t first = j * of.rows.page_tokens / shape.block * shape.block;
    for (int m = 0; m < of.packed(shape, j).count(); ++m)
      members.push_back(static_cast<std::int32_t>(first + of.packed(shape, j).member(m)));
    return members;
  }

  void add_unit(std::size_t i, int query, int h, const page_options& o, tiered_reference& r) const {
    const int G = group_, D = dims_.key_dim, Dv = dims_.value_dim, P = dims_.page_tokens;
    const batch_item& item = items_[i];
    const dci_head<float> of = head(i, h);
    const token_zone z = zone(i, query);
    const float scale = o.scale != 0 ? o.scale : 1 / std::sqrt(static_cast<float>(D));
    const float* const asked = q.data() + ((item.first + query) * heads() + h * G) * D;
    const tensor_view<const float, 2> plain(asked, G, D);
    std::vector<float> turned(asked, asked + G * D), lse;
    for (int g = 0; g < G; ++g) rotate(turned.data() + g * D, static_cast<std::size_t>(D), sketch.seed);
    const token_range resident[] = {{0, z.begin}, {z.end, z.length}};

    // The pages found, by the search that has tests of its own, from the residents' log-sum-exp.
    std::vector<softmax_state> states(static_cast<std::size_t>(G));
    std::vector<float> sums(static_cast<std::size_t>(G * Dv));
    const host one{.threads = 1};
    std::vector<std::byte> rows_scratch(static_cast<std::size_t>(attend_rows_scratch(one, rows.view(), G, item.length)));
    attend_rows(one, rows.view(), item.pages, h, plain, {resident, {}}, {scale, o.soft_cap}, std::span(states),
                tensor_view<float, 2>(sums.data(), G, Dv), rows_scratch);
    for (const softmax_state& s : states) lse.push_back(s.lse());
    const bool takes_codes = ValueBits > 0 && o.others.coded;
    const std::int64_t pages = (z.end - z.begin) / P;
    std::vector<std::int32_t> found(static_cast<std::size_t>(z.begin < z.end ? wanted_pages(o, P, true, takes_codes, pages) : 0));
    if (std::ssize(found) == pages) {
      std::iota(found.begin(), found.end(), static_cast<std::int32_t>(z.begin / P));
    } else if (!found.empty()) {
      const page_search breadth{.pages = static_cast<int>(found.size()), .beam = o.pages.beam, .probes = o.pages.probes};
      const memory_block scratch(std::pmr::new_delete_resource(), search_pages_bytes(page(), G, z.end, breadth));
      found.resize(static_cast<std::size_t>(search_pages(one, shape, of, {}, {plain, lse.data(), scale, z.begin, z.end}, breadth, found,
                                                         {scratch.data(), static_cast<std::size_t>(scratch.size())})
                                                .found));
    }

    // Their members, ranked by codes; the best are exact.
    std::vector<std::int32_t> ids;
    for (const std::int32_t j : found) {
      for (const std::int32_t t : members_of(of, j)) ids.push_back(t);
    }
    std::sort(ids.begin(), ids.end());
    const std::size_t C = ids.size();
    const tensor_view<const float, 2> rotated(static_cast<const float*>(turned.data()), G, D);
    const std::vector<float> logits =
        code_logits<4>(sketch, head_view<float>{rows.view(), codes_of(side_), item.pages, h}, {plain, rotated, scale}, ids);
    std::vector<float> score(C);
    std::vector<std::byte> scratch(static_cast<std::size_t>(group_scores_scratch(one, {}, G, std::ssize(ids))));
    if (C > 0) group_scores(one, {}, tensor_view<const float, 2>(logits.data(), G, std::ssize(ids)), lse, score, scratch);
    std::vector<std::size_t> order(C);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::erase_if(order, [&](std::size_t c) { return is_nan(score[c]); });
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return score[a] > score[b]; });
    const auto readable = order;
    order.resize(std::min(order.size(), static_cast<std::size_t>(o.keep)));

    enum class tier { none, exact, coded };
    std::vector<tier> tier_of(C, tier::none);
    if (takes_codes) {
      for (const std::size_t c : readable) tier_of[c] = tier::coded;
    }
    for (const std::size_t c : order) tier_of[c] = tier::exact;

    const auto capped = [&](double x) {
      return o.soft_cap > 0 ? static_cast<double>(o.soft_cap) * std::tanh(x / static_cast<double>(o.soft_cap)) : x;
    };
    for (int g = 0; g < G; ++g) {
      std::vector<weighted> all;
      const auto exact = [&](std::int64_t t) {
        double dot = 0;
        for (int d = 0; d < D; ++d) dot += static_cast<double>(*plain.at(g, d)) * static_cast<double>(of.key(t)[d]);
        all.push_back({capped(dot * static_cast<double>(scale)), 1, std::vector<double>(of.value(t), of.value(t) + Dv)});
      };
      for (const token_range& range : resident) {
        for (std::int64_t t = range.begin; t < range.end; ++t) exact(t);
      }
      for (std::int64_t j = z.begin / P; j < z.end / P; ++j) {
        const std::vector<std::int32_t> members = members_of(of, j);
        const auto n = static_cast<std::int64_t>(members.size());
        if (n == 0) continue;
        std::vector<float> values;  // (n, Dv)
        for (const std::int32_t t : members) values.insert(values.end(), of.value(t), of.value(t) + Dv);
        const coded_values codes = encode_values_slowly(ValueBits, sketch.seed, values, Dv);
        std::vector<double> mean;
        for (const bf16 x : codes.means) mean.push_back(static_cast<double>(to_float(x)));
        double term = 0, taken_logits = 0;
        for (int d = 0; d < D; ++d) {
          double sum = 0;
          for (const std::int32_t t : members) sum += static_cast<double>(of.key(t)[d]);
          const bf16 stored = round_to<bf16>(static_cast<float>(sum / static_cast<double>(n)));
          term += static_cast<double>(*plain.at(g, d)) * static_cast<double>(to_float(stored)) * static_cast<double>(scale);
        }
        std::int64_t taken = 0;
        for (std::int64_t m = 0; m < n; ++m) {
          const auto at = std::lower_bound(ids.begin(), ids.end(), members[static_cast<std::size_t>(m)]);
          const auto c = static_cast<std::size_t>(at - ids.begin());
          if (at == ids.end() || *at != members[static_cast<std::size_t>(m)] || tier_of[c] == tier::none) continue;
          const auto logit = static_cast<double>(logits[static_cast<std::size_t>(g) * C + c]);
          ++taken;
          taken_logits += logit;
          if (tier_of[c] == tier::exact) {
            exact(ids[c]);
            continue;
          }
          if constexpr (ValueBits > 0) {
            all.push_back({capped(logit), 1, mean});
            all.back().add_code(decoded_value<ValueBits>(codes.codes.data() + m * value_row_bytes(ValueBits, Dv),
                                                         codes.scales[static_cast<std::size_t>(m)], Dv, sketch.seed));
            r.coded += g == 0 ? 1 : 0;
          }
        }
        const std::int64_t left = n - taken;
        if (!o.others.tail || left == 0 || (taken > 0 && left < fewest_in_tail)) continue;
        all.push_back(
            {capped((static_cast<double>(n) * term - taken_logits) / static_cast<double>(left)), static_cast<double>(left), mean});
        r.tails += g == 0 ? 1 : 0;
        r.tail_tokens += g == 0 ? left : 0;
      }
      add_head(all, Dv, r);
    }
  }

  paged_shape dims_;
  int group_, queries_;
  std::vector<batch_item> items_;
  std::vector<memory_block> memory_;
  block_column_arrays side_;
};

}  // namespace kvx::test
