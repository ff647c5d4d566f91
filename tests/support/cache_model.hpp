#pragma once
// What a cache must do, in the plainest words: each sequence is a list of tokens, each page a counted object.

#include <support/token_rows.hpp>

#include <kvx/cache_plan.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace kvx::test {

/// The model of a cache; arguments are those that the cache accepts, and what it must refuse is asked for first.
///
/// A page is a shared_ptr: its users are the tables that hold it, and it is free when the last one has dropped it.
class cache_model {
 public:
  using page = std::shared_ptr<char>;
  struct entry {
    int of = 0;
    std::vector<token> added;
  };
  struct shortage {
    std::int64_t needed = 0;
    std::int64_t free = 0;
  };
  struct sequence {
    std::vector<token> tokens;
    std::vector<std::vector<page>> tables;  // (groups, units)
    std::int64_t peak = 0;                  ///< longest that it, or what it was forked from, ever was since it last was empty
    bool in_step = false;
  };
  /// A begun step: what each entry adds, and the pages that its copies stand for.
  struct step {
    std::vector<entry> entries;
    std::vector<std::vector<page>> replaced;  // (entries, groups)
  };
  enum class verdict { must, may, must_not };

  cache_model(const geometry& g, const cache_plan& p, bool shares) : geometry_(g), groups_(p.groups), shares_(shares) {}

  std::map<int, sequence> sequences;
  std::map<int, step> steps;  // the open ones

  bool full() const { return static_cast<int>(sequences.size()) == geometry_.max_sequences; }

  int open() {
    sequences[next_].tables.resize(groups_.size());
    return next_++;
  }
  void close(int id) { sequences.erase(id); }

  /// Whether a query behind n tokens sees token t of a layer of the group, or one behind more than n could.
  bool seen(std::size_t group, std::int64_t t, std::int64_t n) const {
    const page_rules& r = groups_[group].rules;
    return r.window == 0 || t < r.sink || t + r.window > n;
  }

  bool has(const sequence& s, std::size_t group, std::int64_t t) const {
    return s.tables[group][static_cast<std::size_t>(t / groups_[group].rules.unit_tokens())] != nullptr;
  }

  /// Cutting to n tokens, or forking there.
  verdict cut(int id, std::int64_t n) const {
    const sequence& s = sequences.at(id);
    const auto length = static_cast<std::int64_t>(s.tokens.size());
    if (n < 0 || n > length) return verdict::must_not;
    if (n == length || n == 0 || n >= s.peak - geometry_.rollback) return verdict::must;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      for (std::int64_t t = 0; t < n; ++t) {
        if (seen(g, t, n) && !has(s, g, t)) return verdict::must_not;
      }
    }
    return verdict::may;
  }

  /// Pages that a fork of n tokens lacks.
  std::optional<shortage> fork_lacks(std::int64_t n) const {
    if (shares_) return std::nullopt;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const std::int64_t needed = groups_[g].rules.units(n);
      if (needed > free(g)) return shortage{needed, free(g)};
    }
    return std::nullopt;
  }

  int fork(int id, std::int64_t n) {
    sequence copy = sequences.at(id);
    copy.in_step = false;
    if (!shares_) {
      for (auto& table : copy.tables) {
        for (page& p : table) p = fresh();
      }
    }
    cut_to(copy, n);
    sequences[next_] = std::move(copy);
    return next_++;
  }

  /// Pages that a copy of a sequence, all its own, lacks.
  std::optional<shortage> copy_lacks(int id) const {
    const sequence& s = sequences.at(id);
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const auto end = s.tables[g].begin() + groups_[g].rules.units(static_cast<std::int64_t>(s.tokens.size()));
      const auto needed = static_cast<std::int64_t>(std::count_if(s.tables[g].begin(), end, [](const page& p) { return p != nullptr; }));
      if (needed > free(g)) return shortage{needed, free(g)};
    }
    return std::nullopt;
  }

  /// The committed tokens of a sequence in pages of their own.
  int copy(int id) {
    sequence result = sequences.at(id);
    result.in_step = false;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      result.tables[g].resize(static_cast<std::size_t>(groups_[g].rules.units(static_cast<std::int64_t>(result.tokens.size()))));
      for (page& p : result.tables[g]) p = p != nullptr ? fresh() : nullptr;
    }
    sequences[next_] = std::move(result);
    return next_++;
  }

  void truncate(int id, std::int64_t n) { cut_to(sequences.at(id), n); }

  /// What begin lacks, group after group as the cache looks.
  std::optional<shortage> begin_lacks(std::span<const entry> batch) const {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const page_rules& r = groups_[g].rules;
      std::int64_t needed = 0;
      for (const entry& e : batch) {
        const sequence& s = sequences.at(e.of);
        const auto before = static_cast<std::int64_t>(s.tokens.size());
        const auto added = static_cast<std::int64_t>(e.added.size());
        if (added == 0) continue;
        if (!shares_ && before + added > r.unit_tokens()) return shortage{added, r.unit_tokens() - before};
        needed += r.units(before + added) - r.units(before) + (copies(s, g) ? 1 : 0);
      }
      if (needed > free(g)) return shortage{needed, free(g)};
    }
    return std::nullopt;
  }

  int begin(std::vector<entry> batch) {
    step& result = steps[next_];
    result.entries = std::move(batch);
    for (const entry& e : result.entries) {
      sequence& s = sequences.at(e.of);
      s.in_step = true;
      auto& replaced = result.replaced.emplace_back(groups_.size());
      if (e.added.empty()) continue;
      for (std::size_t g = 0; g < groups_.size(); ++g) {
        auto& table = s.tables[g];
        if (copies(s, g)) replaced[g] = std::exchange(table.back(), fresh());
        const auto n = static_cast<std::int64_t>(s.tokens.size() + e.added.size());
        while (static_cast<std::int64_t>(table.size()) < groups_[g].rules.units(n)) table.push_back(fresh());
      }
    }
    return next_++;
  }

  /// Entry i keeps its first accepted[i] tokens; 0 everywhere is what dropping the step means.
  void end(int id, std::span<const std::int64_t> accepted) {
    const step s = std::move(steps.at(id));
    steps.erase(id);
    for (std::size_t i = 0; i < s.entries.size(); ++i) {
      sequence& of = sequences.at(s.entries[i].of);
      of.in_step = false;
      const auto& added = s.entries[i].added;
      of.tokens.insert(of.tokens.end(), added.begin(), added.begin() + accepted[i]);
      const auto n = static_cast<std::int64_t>(of.tokens.size());
      for (std::size_t g = 0; g < groups_.size(); ++g) {
        of.tables[g].resize(static_cast<std::size_t>(groups_[g].rules.units(n)));
        if (accepted[i] == 0 && s.replaced[i][g]) of.tables[g].back() = s.replaced[i][g];
        if (accepted[i] > 0 && shares_) leave(of.tables[g], g, n);
      }
      of.peak = std::max(of.peak, n);
    }
  }

  /// Pages in use, and pages with several users, over all groups.
  void count(std::int64_t& used, std::int64_t& shared) const {
    used = shared = 0;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const std::vector<const char*> users = held(g);
      for (std::size_t i = 0; i < users.size();) {
        const auto next = static_cast<std::size_t>(std::upper_bound(users.begin(), users.end(), users[i]) - users.begin());
        used += groups_[g].rules.unit_pages;
        if (next - i > 1) shared += groups_[g].rules.unit_pages;
        i = next;
      }
    }
  }

 private:
  page fresh() { return std::make_shared<char>(); }

  bool copies(const sequence& s, std::size_t g) const {
    return static_cast<std::int64_t>(s.tokens.size()) % groups_[g].rules.unit_tokens() != 0 && s.tables[g].back().use_count() > 1;
  }

  void cut_to(sequence& s, std::int64_t n) {
    s.tokens.resize(static_cast<std::size_t>(n));
    if (n == 0) s.peak = 0;
    for (std::size_t g = 0; g < groups_.size(); ++g) s.tables[g].resize(static_cast<std::size_t>(groups_[g].rules.units(n)));
  }

  /// Frees every page none of whose tokens a query can see, not even after `rollback` tokens were cut off.
  void leave(std::vector<page>& table, std::size_t g, std::int64_t n) const {
    const std::int64_t P = groups_[g].rules.page_tokens;
    const std::int64_t shortest = std::max<std::int64_t>(0, n - groups_[g].rules.rollback);
    for (std::int64_t j = 0; j < static_cast<std::int64_t>(table.size()); ++j) {
      bool needed = (j + 1) * P > n;  // the next token's page
      for (std::int64_t t = j * P; t < (j + 1) * P && t < n; ++t) needed = needed || seen(g, t, shortest);
      if (!needed) table[static_cast<std::size_t>(j)] = nullptr;
    }
  }

  /// One pointer for each use of a page: by a table, or by a step that may have to give it back. Sorted.
  std::vector<const char*> held(std::size_t g) const {
    std::vector<const char*> users;
    for (const auto& [id, s] : sequences) {
      for (const page& p : s.tables[g]) {
        if (p) users.push_back(p.get());
      }
    }
    for (const auto& [id, s] : steps) {
      for (const auto& pages : s.replaced) {
        if (pages[g]) users.push_back(pages[g].get());
      }
    }
    std::sort(users.begin(), users.end());
    return users;
  }

  std::int64_t free(std::size_t g) const {
    std::vector<const char*> users = held(g);
    return groups_[g].units - (std::unique(users.begin(), users.end()) - users.begin());
  }

  geometry geometry_;
  std::vector<layer_group> groups_;
  bool shares_;
  int next_ = 1;
};

}  // namespace kvx::test
