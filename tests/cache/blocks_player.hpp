#pragma once
// Random operations on caches of semantic pages, checked against one straight run of each sequence.

#include "random_draws.hpp"
#include "run_length.hpp"

#include <support/feed.hpp>
#include <support/poison.hpp>

#include <kvx/kvx.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace kvx::test {

inline constexpr page_shape small_page{.tokens = 4, .key_dim = 6, .value_dim = 5};
inline constexpr zones blocks_cut{.sink = 4, .local = 5};

inline geometry small_blocks() {
  return {.layers = 3,
          .kv_heads = 2,
          .query_heads = 4,
          .max_tokens = 340,
          .max_sequences = 5,
          .kinds = {layer_kind::dense(), layer_kind::retrieve(), layer_kind::retrieve()},
          .max_step_tokens = 90,
          .rope = {rope_pairs::order::halves, 6}};
}

/// What a sequence is: its tokens, and of which of them the queries were seen.
struct told {
  token id = 0;
  bool seen = false;
};

/// Plays random operations on a cache of semantic pages. What each sequence must be is told to another cache in few pieces.
template <class Cache>
class blocks_player : protected random_draws {
 public:
  explicit blocks_player(std::uint64_t seed) : random_draws(seed) { poison(); }

  void play() {
    do_one_of(
        {10, 4, 12, 12}, [&] { open(); }, [&] { close(); }, [&] { fork(); }, [&] { truncate(); }, [&] { advance_some(); });
    if (below(4) == 0) poison();
    if (!sequences_.empty() && below(3) == 0) check(*any(sequences_));
  }

  std::int64_t commits = 0, drops = 0, shortages = 0, checked = 0, retrieved = 0, copied = 0;

 protected:
  struct entry {
    sequence handle;
    std::vector<told> tokens;
  };
  struct running {
    std::vector<entry*> of;
    std::vector<std::vector<told>> added;
    std::vector<std::int64_t> accepted;
    step open;
  };

  void open() {
    if (std::cmp_equal(sequences_.size(), small_blocks().max_sequences)) return;
    sequences_.push_back({cache_.open(exec_), {}});
  }
  void close() {
    if (sequences_.empty()) return;
    std::swap(*any(sequences_), sequences_.back());
    cache_.close(exec_, sequences_.back().handle);
    sequences_.pop_back();
  }
  void fork() {
    if (sequences_.empty() || std::cmp_equal(sequences_.size(), small_blocks().max_sequences)) return;
    const entry& from = *any(sequences_);
    const std::int64_t n = below(2) == 0 ? std::ssize(from.tokens) : below(std::ssize(from.tokens) + 1);
    try {
      sequences_.push_back({cache_.fork(exec_, from.handle, n), {from.tokens.begin(), from.tokens.begin() + n}});
    } catch (const capacity_error&) {
      ++shortages;
    }
  }
  void truncate() {
    if (sequences_.empty()) return;
    entry& e = *any(sequences_);
    const auto n = static_cast<std::size_t>(std::max<std::int64_t>(0, std::ssize(e.tokens) - below(below(3) == 0 ? 60 : 12)));
    cache_.truncate(exec_, e.handle, static_cast<std::int64_t>(n));
    e.tokens.resize(n);
  }

  /// One step of some sequences, or two that are open side by side.
  void advance_some() {
    std::array<running, 2> steps{running{{}, {}, {}, cache_.begin(exec_, {})}, running{{}, {}, {}, cache_.begin(exec_, {})}};
    const int count = 1 + below(2);
    for (entry& e : sequences_) {
      if (below(3) != 0) steps[static_cast<std::size_t>(below(count))].of.push_back(&e);
    }
    const bool second_first = below(2) == 0;
    for (running& r : steps) begin(r);
    for (int i : {0, 1}) finish(steps[static_cast<std::size_t>(second_first ? 1 - i : i)]);
  }

  void begin(running& r) {
    std::vector<advance> batch;
    for (const entry* e : r.of) {
      const std::int64_t more = below(3) == 0 ? below(50) : below(4);
      auto& tokens = r.added.emplace_back();
      for (std::int64_t i = 0; i < more; ++i) tokens.push_back({next_token_++, false});
      r.accepted.push_back(below(3) == 0 ? below(more + 1) : more);
      batch.push_back({e->handle, more});
    }
    try {
      const std::int64_t copied_before = cache_.stats().rows_copied;
      r.open = cache_.begin(exec_, batch);
      copied += cache_.stats().rows_copied - copied_before;
    } catch (const capacity_error&) {
      ++shortages;
      r.of.clear();
    } catch (const usage_error&) {  // more tokens than a step has
      r.of.clear();
    }
  }

  void finish(running& r) {
    if (r.of.empty()) return;
    std::vector<token> ids;
    for (const auto& tokens : r.added) {
      for (const told& t : tokens) ids.push_back(t.id);
    }
    append_all(cache_, exec_, r.open, ids);
    const int shown = below(3);
    if (shown == 1) observe_all(cache_, exec_, r.open, ids);
    if (shown == 2) attend_all(cache_, exec_, r.open, ids, {.keep = 8, .path = attend_options::route::retrieve});
    if (below(6) == 0) {
      ++drops;
      const step gone = std::move(r.open);
      return;
    }
    cache_.commit(exec_, r.open, r.accepted);
    ++commits;
    for (std::size_t i = 0; i < r.of.size(); ++i) {
      for (std::int64_t t = 0; t < r.accepted[i]; ++t) r.of[i]->tokens.push_back({r.added[i][static_cast<std::size_t>(t)].id, shown != 0});
    }
  }

  void poison() {
    std::vector<sequence> all;
    for (const entry& e : sequences_) all.push_back(e.handle);
    const cache_plan p = plan<typename Cache::layout>(small_blocks(), Cache::spec_type::columns(Cache::layout::shape), call_site::here());
    for (int layer = 0; layer < small_blocks().layers; ++layer) poison_free(cache_, layer, p.groups[0].pages(), all);
  }

  /// The sequence as it would be in a cache of its own, told in few pieces.
  void check(const entry& e) {
    Cache other(exec_, {}, small_blocks());
    const sequence s = other.open(exec_);
    for (std::size_t at = 0; at < e.tokens.size();) {
      std::size_t end = at;
      std::vector<token> ids;
      for (; end < e.tokens.size() && e.tokens[end].seen == e.tokens[at].seen && ids.size() < 80; ++end) ids.push_back(e.tokens[end].id);
      step piece = other.begin(exec_, {{s, std::ssize(ids)}});
      append_all(other, exec_, piece, ids);
      if (e.tokens[at].seen) observe_all(other, exec_, piece, ids);
      other.commit(exec_, piece);
      at = end;
    }
    ++checked;
    const std::int64_t n = std::ssize(e.tokens);
    CAPTURE(n);
    REQUIRE(cache_.length(e.handle) == n);
    CHECK(columns(cache_, e.handle, n) == columns(other, s, n));
    const std::vector<token> probe{next_token_, next_token_ + 1};
    const std::vector<float> found = probed(cache_, e.handle, probe);
    if (!found.empty()) CHECK(found == probed(other, s, probe));  // empty: the pool is full
    retrieved += edge(Cache::zones, n, small_page.tokens) > blocks_cut.sink ? 1 : 0;
  }

  /// All columns of the retrieval zone, and those of the queries before it and behind it.
  static std::vector<std::byte> columns(const Cache& c, sequence s, std::int64_t n) {
    std::vector<std::byte> bytes;
    constexpr auto all = Cache::spec_type::columns(small_page);
    for (const int layer : {1, 2}) {
      const auto table = c.pages(layer, s);
      for (std::size_t k = 0; k < all.size(); ++k) {
        if (all[k].block_bytes == 0 || k == query_column) continue;
        for (std::int64_t j = blocks_cut.sink / small_page.tokens; j < edge(Cache::zones, n, small_page.tokens) / small_page.tokens; ++j) {
          for (int h = 0; h < 2; ++h) {
            const std::byte* const block = c.column(layer, static_cast<int>(k)).at(table[static_cast<std::size_t>(j)], h);
            bytes.insert(bytes.end(), block, block + all[k].block_bytes);
          }
        }
      }
    }
    return bytes;
  }

  /// What two more tokens retrieve; forgotten again.
  std::vector<float> probed(Cache& c, sequence s, std::span<const token> ids) {
    try {
      step probe = c.begin(exec_, {{s, std::ssize(ids)}});
      append_all(c, exec_, probe, ids);
      return attend_all(c, exec_, probe, ids, {.keep = 8, .path = attend_options::route::retrieve});
    } catch (const capacity_error&) {
      return {};
    }
  }

  host exec_ = one_thread();
  Cache cache_{exec_, {}, small_blocks()};
  std::vector<entry> sequences_;
  token next_token_ = 1;
};

}  // namespace kvx::test
