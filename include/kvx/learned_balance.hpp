#pragma once
// The balance of each sequence: queries that it learns from, kept position by position, and the diagonals once they are fixed.

#include <kvx/backend/host.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/layout/sequence_book.hpp>
#include <kvx/layout/zones.hpp>
#include <kvx/sketch/balance.hpp>
#include <kvx/sketch/query_energies.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace kvx {

/// What is learned, of whom.
///
/// tokens      positions [sink, tokens) are learned from
/// layers      those that retrieve
struct learning_rules {
  std::int64_t tokens = 0;
  std::int64_t sink = 0;
  int layers = 0;
  int heads = 0;
  int dim = 0;
  rope_pairs pairs = {};

  /// Positions below n that are learned from, those of the sink included.
  std::int64_t samples(std::int64_t n) const { return std::min(n, tokens) / learning_stride; }

  /// Where values (H, D) of a layer begin.
  std::int64_t at(int layer) const { return std::int64_t{layer} * heads * dim; }
  std::size_t values() const { return static_cast<std::size_t>(at(layers)); }
};

/// The queries at one position: for each layer and KV head the squares of the group's queries, added up.
struct query_sample {
  std::shared_ptr<bf16[]> energies;  ///< (layers, heads, D), memory of the backend
  std::vector<std::uint8_t> seen;    // (layers)
};

/// The diagonals of one sequence. Fixed once, shared by forks.
struct balance_table {
  std::shared_ptr<float[]> diagonals;  ///< (layers, heads, D), memory of the backend
  std::vector<std::uint8_t> seen;      ///< (layers, heads): its queries were seen; where not, the diagonal is 1
};

/// So many samples, of which nothing is seen yet.
inline std::vector<std::shared_ptr<query_sample>> make_samples(const host&, const learning_rules& r, std::int64_t count) {
  std::vector<std::shared_ptr<query_sample>> samples;
  for (std::int64_t i = 0; i < count; ++i) {
    samples.push_back(std::make_shared<query_sample>());
    samples.back()->energies = std::make_shared<bf16[]>(r.values());
    samples.back()->seen.resize(static_cast<std::size_t>(r.layers));
  }
  return samples;
}

/// A table to be fixed; its contents are undefined.
inline std::shared_ptr<balance_table> make_balance_table(const host&, const learning_rules& r) {
  auto table = std::make_shared<balance_table>();
  table->diagonals = std::make_shared<float[]>(r.values());
  table->seen.resize(static_cast<std::size_t>(r.layers) * static_cast<std::size_t>(r.heads));
  return table;
}

/// What one sequence has learned: samples in order, of committed positions alone.
struct learned_balance {
  std::vector<std::shared_ptr<const query_sample>> samples;
  std::shared_ptr<const balance_table> balance;
};

/// What one entry of a step learns; it becomes part of the sequence when the step is committed.
struct learning_entry {
  std::int64_t first = 0;  ///< index of the first of the samples
  std::vector<std::shared_ptr<query_sample>> samples;
  std::shared_ptr<balance_table> balance;  ///< where this step reaches the last token that is learned from
};

/// Writes down the queries of the positions that are learned from, of one layer.
///
/// shapes      q (N, Q, D); the entry's rows are [part.first, part.first + part.tokens)
/// exactness   sums in double, ascending, rounded to bf16
template <class T>
void observe_queries(const learning_rules& rules, const learning_entry& entry, const reservation::part& part, int layer,
                     const tensor_view<T, 3>& q) {
  const std::int64_t group = q.extents[1] / rules.heads;
  for (std::size_t i = 0; i < entry.samples.size(); ++i) {
    const std::int64_t position = (entry.first + static_cast<std::int64_t>(i) + 1) * learning_stride - 1;
    const std::int64_t row = part.first + position - part.length;
    query_sample& sample = *entry.samples[i];
    bf16* energies = sample.energies.get() + rules.at(layer);
    for (std::int64_t h = 0; h < rules.heads; ++h) group_energies(q, row, h * group, group, energies + h * rules.dim);
    sample.seen[static_cast<std::size_t>(layer)] = 1;
  }
}

/// What all sequences of a cache have learned, by slot. Off where rules.tokens is 0.
///
/// cost        128 samples of layers x heads x D x 2 bytes for a sequence that has seen 1,024 tokens, shared by its forks
class balance_book {
 public:
  balance_book() = default;
  balance_book(const learning_rules& rules, std::size_t slots) : rules_(rules), slots_(on() ? slots : 0) {}

  bool on() const { return rules_.tokens > 0 && rules_.layers > 0; }
  const learning_rules& rules() const { return rules_; }
  std::span<const learned_balance> slots() const { return slots_; }

  /// What the first n tokens of a sequence have taught: exactly what a sequence of these tokens alone would have learned.
  learned_balance cut_at(std::uint32_t slot, std::int64_t n) const {
    if (!on()) return {};
    const learned_balance& from = slots_[slot];
    const auto kept = from.samples.begin() + std::clamp<std::int64_t>(rules_.samples(n), 0, std::ssize(from.samples));
    return {{from.samples.begin(), kept}, n >= rules_.tokens ? from.balance : nullptr};
  }
  void assign(std::uint32_t slot, learned_balance&& learned) noexcept {
    if (on()) slots_[slot] = std::move(learned);
  }
  void truncate(std::uint32_t slot, std::int64_t n) noexcept {
    if (!on()) return;
    learned_balance& of = slots_[slot];
    while (std::ssize(of.samples) > rules_.samples(n)) of.samples.pop_back();
    if (n < rules_.tokens) of.balance = nullptr;
  }

  /// Memory for what an entry of a step will learn; after it `accept` cannot fail.
  template <class Backend>
  learning_entry begin(const Backend& exec, const reservation::part& p) {
    learning_entry entry;
    if (!on() || p.length >= rules_.tokens) return entry;
    entry.first = rules_.samples(p.length);
    const std::int64_t end = rules_.samples(p.length + p.tokens);
    if (end > entry.first) entry.samples = make_samples(exec, rules_, end - entry.first);
    if (p.length + p.tokens >= rules_.tokens) entry.balance = make_balance_table(exec, rules_);
    slots_[p.slot].samples.reserve(static_cast<std::size_t>(rules_.samples(rules_.tokens)));
    return entry;
  }

  /// Units of an entry that its commit encodes for the first time while they are shared with a sequence of another balance that has encoded
  /// them, or will by an open step: those of the tokens that are learned from must be its own.
  ///
  /// encoding    slots of earlier entries of the batch that encode for the first time; this one is added if it does
  unit_range contested(const reservation::part& p, const zones& z, std::int64_t page_tokens, std::span<const sequence_book::slot> all,
                       int group, std::vector<std::uint32_t>& encoding) const {
    const auto encoded = [&](std::int64_t n) { return edge(z, n, page_tokens) >= z.first; };
    if (!on() || encoded(p.length) || !encoded(p.length + p.tokens)) return {};
    const std::int64_t units = ceil_div(rules_.tokens, page_tokens);
    const std::vector<page_id>& mine = all[p.slot].tables[static_cast<std::size_t>(group)].units;
    const auto rivals = [&](std::size_t i) {
      const sequence_book::slot& other = all[i];
      if (i == p.slot || !other.open) return false;
      if (slots_[i].balance != nullptr && slots_[i].balance == slots_[p.slot].balance) return false;
      const page_table& table = other.tables[static_cast<std::size_t>(group)];
      const bool encodes = encoded(other.in_step ? std::ssize(table.pages) * page_tokens : other.length) ||
                           std::find(encoding.begin(), encoding.end(), i) != encoding.end();
      const auto common = std::min<std::int64_t>({units, std::ssize(mine), std::ssize(table.units)});
      return encodes && !std::equal(mine.begin(), mine.begin() + common, table.units.begin(), std::not_equal_to<>());
    };
    bool contested = false;
    for (std::size_t i = 0; i < all.size() && !contested; ++i) contested = rivals(i);
    encoding.push_back(p.slot);
    return {0, contested ? units : 0};
  }

  /// The diagonals that a sequence retrieves with; null before they are fixed.
  const float* diagonals(std::uint32_t slot) const {
    return slots_[slot].balance != nullptr ? slots_[slot].balance->diagonals.get() : nullptr;
  }

  /// The diagonals (H, D) of one layer under which keys of an entry are encoded when its step is committed with `kept` new tokens: fixed
  /// now, from the keys [sink, tokens) and the queries seen, if the step reaches the last of them. Null where nothing is encoded yet.
  template <class E>
  const float* fix(const host& exec, learning_entry& entry, const reservation::part& p, std::int64_t kept, int layer,
                   const row_view<const E>& rows, const std::int32_t* pages) const {
    const std::vector<std::shared_ptr<const query_sample>>& before = slots_[p.slot].samples;
    if (p.length + kept < rules_.tokens) return nullptr;
    if (const float* const fixed = diagonals(p.slot)) return fixed + rules_.at(layer);
    std::vector<balance_moments> all(static_cast<std::size_t>(rules_.heads), balance_moments(rules_.dim));
    float* const to = entry.balance->diagonals.get() + rules_.at(layer);
    for_each_task(exec, rules_.heads, [&](std::int64_t h) {
      balance_moments& moments = all[static_cast<std::size_t>(h)];
      for (std::int64_t t = rules_.sink; t < rules_.tokens; ++t)
        moments.add_key(rows.key.at(pages[t / rows.page_tokens], h, t % rows.page_tokens));
      for (std::int64_t i = rules_.sink / learning_stride; i < rules_.samples(rules_.tokens); ++i) {
        const std::int64_t added = i - entry.first;
        const query_sample& sample = added < 0 ? *before[static_cast<std::size_t>(i)] : *entry.samples[static_cast<std::size_t>(added)];
        if (sample.seen[static_cast<std::size_t>(layer)] != 0)
          moments.add_energies(sample.energies.get() + rules_.at(layer) + h * rules_.dim);
      }
      moments.balance(rules_.pairs, to + h * rules_.dim);
      entry.balance->seen[static_cast<std::size_t>(std::int64_t{layer} * rules_.heads + h)] = moments.queries() > 0 ? 1 : 0;
    });
    return to;
  }

  /// Makes what an entry has learned part of the sequence, of which `kept` new tokens remain.
  void accept(learning_entry& entry, const reservation::part& p, std::int64_t kept) noexcept {
    learned_balance& of = slots_[p.slot];
    for (auto& s : entry.samples) {
      if (std::ssize(of.samples) < rules_.samples(p.length + kept)) of.samples.push_back(std::move(s));
    }
    if (p.length + kept >= rules_.tokens && of.balance == nullptr) of.balance = std::move(entry.balance);
  }

  /// Adds what is held to the counts of a cache.
  template <class Stats>
  void count(Stats& stats) const {
    for (const learned_balance& of : slots_) {
      if (of.balance == nullptr) continue;
      const std::vector<std::uint8_t>& seen = of.balance->seen;
      if (std::find(seen.begin(), seen.end(), 0) == seen.end()) ++stats.balanced_sequences;
    }
  }

 private:
  learning_rules rules_;
  std::vector<learned_balance> slots_;
};

}  // namespace kvx
