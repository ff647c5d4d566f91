#pragma once
// Plays random operations on a cache and on the model of one, and checks after each that both hold the same.

#include "random_draws.hpp"
#include "run_length.hpp"
#include "same_as_model.hpp"

#include <support/cache_model.hpp>
#include <support/checksum_index.hpp>
#include <support/poison.hpp>
#include <support/token_rows.hpp>

#include <kvx/kvx.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace kvx::test {

/// Cache       what host code can call as a cache on the host, built from (Exec, {}, geometry)
template <class Layout, class Cache = cache<host, spec<Layout, checksum_index>>, class Exec = host>
class player : protected random_draws {
 public:
  using cache_type = Cache;
  using E = typename Layout::element_type;
  static constexpr int D = Layout::shape.key_dim;
  static constexpr int Dv = Layout::shape.value_dim;

  static kvx::geometry small() {
    kvx::geometry g{.layers = 5, .kv_heads = 2, .query_heads = 4, .max_tokens = 160, .max_sequences = 6};
    g.kinds = {layer_kind::dense(), layer_kind::window(7), layer_kind::retrieve(), layer_kind::window(11, 3), layer_kind::retrieve()};
    g.max_step_tokens = 40;
    g.rollback = 6;
    if constexpr (offloads<Layout>()) g.near_tokens = 72;
    return g;
  }

  player(std::uint64_t seed, Exec exec)
      : random_draws(seed),
        exec_(exec),
        geometry_(small()),
        plan_(plan<Layout>(geometry_, Cache::index::columns(Layout::shape), call_site::here())),
        cache_(exec, {}, geometry_),
        model_(geometry_, plan_, Layout::shares_pages),
        same_(cache_, model_, plan_) {
    poison();
  }

  /// One random operation, then every check.
  void play() {
    do_one_of(
        {8, 4, 8, 10, 6, 30, 12, 14}, [&] { open(); }, [&] { close(); }, [&] { fork(); }, [&] { truncate(); }, [&] { misuse(); },
        [&] {
          if (begin()) finish(steps_.rbegin()->first);
        },
        [&] {
          if (steps_.size() < 3) begin();
        },
        [&] {
          if (!steps_.empty()) append_some(any(steps_)->first);
        },
        [&] {
          if (!steps_.empty()) finish(any(steps_)->first);
        });
    check();
  }

  /// Ends all steps, closes all sequences: nothing is left.
  void clear() {
    while (!steps_.empty()) finish(steps_.begin()->first);
    while (!handles_.empty()) close();
    check();
    CHECK(cache_.stats().pages_used == 0);
    CHECK(cache_.stats().sequences == 0);
  }

  std::int64_t commits = 0, refusals = 0, shortages = 0, near_shortages = 0, attended = 0, columns_checked = 0, most_shared = 0;

 protected:
  struct running {
    kvx::step step;
    std::vector<int> entries;    // model ids
    std::vector<token> added;    // (N)
    std::vector<bool> appended;  // (layers)
  };

  std::int64_t length(int id) const { return static_cast<std::int64_t>(model_.sequences.at(id).tokens.size()); }

  template <class Error, class Call>
  void refused(const Call& call) {
    ++refusals;
    CHECK_THROWS_AS(call(), Error);
  }

  void open() {
    if (model_.full()) return refused<capacity_error>([&] { cache_.open(exec_); });
    const int id = model_.open();
    handles_[id] = cache_.open(exec_);
  }

  void close() {
    if (handles_.empty()) return;
    const auto [id, handle] = *any(handles_);
    if (model_.sequences.at(id).in_step) return refused<usage_error>([&, h = handle] { cache_.close(exec_, h); });
    cache_.close(exec_, handle);
    stale_.push_back(handle);
    model_.close(id);
    handles_.erase(id);
  }

  void fork() {
    if (handles_.empty()) return;
    const auto [id, handle] = *any(handles_);
    const std::int64_t held = length(id), n = below(2) == 0 ? held : below(static_cast<int>(held) + 2);
    const auto call = [&, h = handle] { return n == held && below(2) == 0 ? cache_.fork(exec_, h) : cache_.fork(exec_, h, n); };
    const auto verdict = model_.cut(id, n);
    if (verdict == cache_model::verdict::must_not) return refused<usage_error>(call);
    if (model_.full() || model_.fork_lacks(n)) {
      if (verdict == cache_model::verdict::must) return refused<capacity_error>(call);
      return;
    }
    attempt(verdict, [&, i = id] {
      const sequence handle_of_fork = call();
      handles_[model_.fork(i, n)] = handle_of_fork;
    });
  }

  void truncate() {
    if (handles_.empty()) return;
    const auto [id, handle] = *any(handles_);
    const std::int64_t n = below(2) == 0 ? std::max<std::int64_t>(0, length(id) - below(7)) : below(static_cast<int>(length(id)) + 2);
    const auto call = [&, h = handle] { cache_.truncate(exec_, h, n); };
    const auto verdict = model_.cut(id, n);
    if (verdict == cache_model::verdict::must_not || model_.sequences.at(id).in_step) return refused<usage_error>(call);
    attempt(verdict, [&, i = id] {
      call();
      model_.truncate(i, n);
    });
  }

  /// A call that must succeed, or may be refused.
  template <class Call>
  void attempt(cache_model::verdict verdict, const Call& call) {
    try {
      call();
    } catch (const usage_error& error) {
      CAPTURE(std::string(error.what()));
      CHECK(verdict == cache_model::verdict::may);
      ++refusals;
    }
  }

  void misuse() {
    if (!stale_.empty()) {
      const sequence old = stale_[static_cast<std::size_t>(below(static_cast<int>(stale_.size())))];
      refused<usage_error>([&] { cache_.length(old); });
      refused<usage_error>([&] { cache_.begin(exec_, {{old, 1}}); });
    }
    if (handles_.empty()) return;
    const auto [id, handle] = *any(handles_);
    const bool in_step = model_.sequences.at(id).in_step;
    refused<usage_error>([&, h = handle] { cache_.begin(exec_, {{h, 1}, {h, 1}}); });
    refused<usage_error>([&, h = handle] { cache_.begin(exec_, {{h, -1}}); });
    if (in_step) refused<usage_error>([&, h = handle] { cache_.begin(exec_, {{h, 0}}); });
  }

  bool begin() {
    std::vector<cache_model::entry> batch;
    std::vector<advance> counts;
    running r{kvx::step(cache_.begin(exec_, {})), {}, {}, std::vector<bool>(static_cast<std::size_t>(geometry_.layers))};
    const int most = below(8) == 0 ? 60 : below(3) == 0 ? 12 : 2;
    for (const auto& [id, handle] : handles_) {
      if (model_.sequences.at(id).in_step || below(3) == 0) continue;
      auto& entry = batch.emplace_back(cache_model::entry{id, {}});
      for (int i = below(most + 1); i > 0; --i) entry.added.push_back(next_token_++);
      counts.push_back({handle, static_cast<std::int64_t>(entry.added.size())});
      r.entries.push_back(id);
      r.added.insert(r.added.end(), entry.added.begin(), entry.added.end());
    }
    if (const auto lack = model_.begin_lacks(batch)) {
      ++shortages;
      try {
        cache_.begin(exec_, counts);
        FAIL_CHECK("begin found pages that are not there");
      } catch (const capacity_error& error) {
        CHECK(error.needed() == lack->needed);
        CHECK(error.free() == lack->free);
      }
      return false;
    }
    if (static_cast<std::int64_t>(r.added.size()) > geometry_.max_step_tokens) {
      refused<usage_error>([&] { cache_.begin(exec_, counts); });
      return false;
    }
    try {
      r.step = cache_.begin(exec_, counts);
    } catch (const capacity_error&) {  // the model knows nothing of near memory
      if constexpr (!offloads<Layout>()) throw;
      ++near_shortages;
      return false;
    }
    CHECK(r.step.tokens() == static_cast<std::int64_t>(r.added.size()));
    steps_.emplace(model_.begin(std::move(batch)), std::move(r));
    return true;
  }

  /// Appends one more layer; attends to it now and then.
  void append_some(int id) {
    running& r = steps_.at(id);
    const int layer = below(geometry_.layers);
    if (r.appended[static_cast<std::size_t>(layer)]) return;
    const int H = geometry_.kv_heads;
    if (below(2) == 0) {
      const auto k = rows_of<float>(r.added, part::key, layer, H, D), v = rows_of<float>(r.added, part::value, layer, H, Dv);
      cache_.append(exec_, r.step, layer, k.data(), v.data());
    } else {
      const auto k = rows_of<E>(r.added, part::key, layer, H, D), v = rows_of<E>(r.added, part::value, layer, H, Dv);
      cache_.append(exec_, r.step, layer, k.data(), v.data());
    }
    r.appended[static_cast<std::size_t>(layer)] = true;
    if (!r.added.empty() && below(24) == 0) attend(r, layer);
  }

  void finish(int id) {
    running& r = steps_.at(id);
    if (below(8) == 0) {  // the owner moves
      kvx::step moved = std::move(r.step);
      CHECK_FALSE(r.step.open());
      r.step = std::move(moved);
    }
    const auto& entries = model_.steps.at(id).entries;
    std::vector<std::int64_t> accepted;
    if (below(5) == 0) {  // dropped
      accepted.assign(entries.size(), 0);
      steps_.erase(id);
    } else {
      while (std::find(r.appended.begin(), r.appended.end(), false) != r.appended.end()) append_some(id);
      const bool some = below(4) == 0;
      for (const auto& e : entries)
        accepted.push_back(some ? below(static_cast<int>(e.added.size()) + 1) : static_cast<int>(e.added.size()));
      if (some && !accepted.empty()) {
        cache_.commit(exec_, r.step, accepted);
      } else {
        cache_.commit(exec_, r.step);
      }
      ++commits;
      steps_.erase(id);
    }
    model_.end(id, accepted);
  }

  void attend(const running& r, int layer) {
    ++attended;
    const auto Q = static_cast<std::size_t>(geometry_.query_heads);
    const auto q = rows_of<float>(r.added, part::query, layer, geometry_.query_heads, D);
    std::vector<float> out(r.added.size() * Q * static_cast<std::size_t>(Dv), quiet_nan), lse(r.added.size() * Q, quiet_nan);
    attend_options options{.lse = lse.data()};
    if (below(2) == 0) options.scale = 1.7f;
    cache_.attend(exec_, r.step, layer, q.data(), out.data(), options);
    same_.attention(r.entries, r.added, layer, options.scale, out, lse);
  }

  /// Rows that an open step has written, or would give back, are known to nobody else: then nothing is poisoned.
  void poison() {
    if (!steps_.empty()) return;
    std::vector<sequence> all;
    for (const auto& [id, handle] : handles_) all.push_back(handle);
    for (int layer = 0; layer < geometry_.layers; ++layer) {
      poison_free(cache_, layer, plan_.groups[static_cast<std::size_t>(plan_.group_of[static_cast<std::size_t>(layer)])].pages(), all);
      if constexpr (requires { cache_.restore_rows(layer); }) cache_.restore_rows(layer);  // what was poisoned was a copy
    }
  }

  void check() {
    std::int64_t used = 0, shared = 0, tokens = 0;
    model_.count(used, shared);
    const cache_stats stats = cache_.stats();
    CHECK(stats.pages_used == used);
    CHECK(stats.pages_shared == shared);
    CHECK(stats.pages_free == stats.pages_total - used);
    CHECK(stats.sequences == static_cast<int>(model_.sequences.size()));
    most_shared = std::max(most_shared, shared);
    if (below(4) == 0) poison();
    const bool all = below(8) == 0 || operations() < 1000;
    const int one = handles_.empty() ? 0 : below(static_cast<int>(handles_.size()));
    int at = 0;
    for (const auto& [id, handle] : handles_) {
      if (cache_.length(handle) != length(id)) FAIL_CHECK("length");
      tokens += length(id);
      if (all || at++ == one) columns_checked += same_.rows(id, handle);
    }
    CHECK(stats.tokens == tokens);
    CHECK(stats.sink_tokens + stats.retrieval_tokens + stats.recent_tokens == tokens);
  }

  Exec exec_;
  kvx::geometry geometry_;
  cache_plan plan_;
  cache_type cache_;
  cache_model model_;
  same_as_model<cache_type> same_;
  std::map<int, sequence> handles_;
  std::map<int, running> steps_;
  std::vector<sequence> stale_;
  token next_token_ = 1;
};

}  // namespace kvx::test
