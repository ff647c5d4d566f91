#pragma once
// Two caches to which the same is done, one of which has its old rows in a file.

#include <support/feed.hpp>

#include <kvx/kvx.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace kvx::test {

using route = attend_options::route;

// Pages of 8 KiB and more: what a page leaves behind is zero, so a row that is read where it no longer lies shows.
template <placement Place, element E = float>
using rows_in = paged<E, page_shape{.tokens = 16, .key_dim = 64, .value_dim = 64}, zones{.sink = 16, .local = 20}, Place>;
template <placement Place>
using ice = spec<rows_in<Place, bf16>, dci_tree<dci_shape{.block = 32}>, exact>;
template <placement Place>
using ice_in_tiers = spec<rows_in<Place, bf16>, dci_tree<dci_shape{.block = 32}>, rsq_ip<4, tiers{.value_bits = 4, .tail = true}>>;
template <placement Place>
using paris = spec<rows_in<Place>, sign_buckets<key_sketch{.balance = 64}>, rsq_ip<4>>;

inline geometry small(std::int64_t near) {
  return {.layers = 3,
          .kv_heads = 2,
          .query_heads = 4,
          .max_tokens = 1200,
          .max_sequences = 3,
          .kinds = {layer_kind::dense(), layer_kind::retrieve(), layer_kind::retrieve()},
          .near_tokens = near,
          .hot_rows = 16};
}

/// Two caches to which the same is done.
template <class Near, class Far>
struct twins {
  host exec;
  cache<host, Near> a{exec, {}, small(0)};
  cache<host, Far> b;
  struct pair {
    sequence a, b;
  };
  std::vector<pair> open;
  std::mt19937_64 random{7};
  token next = 1;
  std::int64_t compared = 0, apart = 0;
  attention_audit of_a, of_b;
  bool audited = false;

  twins(host by, bool mapped) : exec(by), b(exec, {}, far(mapped)) {}
  static geometry far(bool mapped) {
    geometry g = small(304);
    g.far.mapped = mapped;
    return g;
  }
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n)); }

  void feed(const std::vector<std::size_t>& who, std::int64_t n, bool prompt, const attend_options& how) {
    std::vector<advance> on_a, on_b;
    for (const std::size_t i : who) on_a.push_back({open[i].a, n}), on_b.push_back({open[i].b, n});
    const std::vector<token> ids = tokens(next, n * std::ssize(who));
    next += static_cast<token>(ids.size());
    step x = a.begin(exec, on_a), y = b.begin(exec, on_b);
    append_all(a, exec, x, ids);
    append_all(b, exec, y, ids);
    if (prompt) {
      observe_all(a, exec, x, ids);
      observe_all(b, exec, y, ids);
    } else {
      attend_options on_far = how, on_near = how;
      if (audited) on_near.audit = &of_a, on_far.audit = &of_b;
      same(attend_all(a, exec, x, ids, on_near), attend_all(b, exec, y, ids, on_far));
    }
    if (!prompt && below(8) == 0) return;  // dropped
    a.commit(exec, x);
    b.commit(exec, y);
  }
  void same(const std::vector<float>& x, const std::vector<float>& y) {
    REQUIRE(x.size() == y.size());
    for (std::size_t i = 0; i < x.size(); ++i) apart += std::memcmp(&x[i], &y[i], sizeof(float)) == 0 ? 0 : 1;
    compared += std::ssize(x);
  }
  void grow(std::int64_t n, const attend_options& how) {
    open.push_back({a.open(exec), b.open(exec)});
    for (; n > 0; n -= 40) feed({open.size() - 1}, std::min<std::int64_t>(n, 40), true, how);
  }
  void decode(int steps, const attend_options& how) {
    for (int i = 0; i < steps; ++i) {
      std::vector<std::size_t> who;
      for (std::size_t s = 0; s < open.size(); ++s) {
        if (below(3) > 0) who.push_back(s);
      }
      feed(who, below(5) == 0 ? 3 : 1, false, how);
    }
  }
  void cut(std::size_t i, std::int64_t by) {
    const std::int64_t n = a.length(open[i].a) - by;
    a.truncate(exec, open[i].a, n);
    b.truncate(exec, open[i].b, n);
  }
  void fork(std::size_t i, std::int64_t n) { open.push_back({a.fork(exec, open[i].a, n), b.fork(exec, open[i].b, n)}); }
  void close(std::size_t i) {
    a.close(exec, open[i].a);
    b.close(exec, open[i].b);
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
  }
};

}  // namespace kvx::test
