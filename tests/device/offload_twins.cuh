#pragma once
// Two caches on the device to which the same is done: one whose rows all lie near, and one whose near memory holds little.

#include "cache_on_host.cuh"

#include <support/feed.hpp>

#include <kvx/kvx.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace kvx::test {

template <element E, int P, placement Place>
using rows_in = paged<E, page_shape{.tokens = P, .key_dim = 24, .value_dim = 16}, zones{.sink = 3, .local = 20}, Place>;
template <element E, int P, placement Place, class Reranker = rsq_ip<4>>
using paris = spec<rows_in<E, P, Place>, sign_buckets<key_sketch{.balance = 64}>, Reranker>;

/// A cache of all rows near beside one whose near memory is small; the same is done to both.
template <class Near, class Far>
struct offload_twins {
  struct pair {
    sequence a, b;
  };
  geometry g{.layers = 4,
             .kv_heads = 2,
             .query_heads = 4,
             .max_tokens = 1200,
             .max_sequences = 3,
             .kinds = {layer_kind::retrieve(), layer_kind::window(20, 3), layer_kind::dense(), layer_kind::retrieve()},
             .rollback = 400};
  test_stream stream;
  device exec{.stream = stream.get()};
  cache_on_host<Near> a{exec, {}, g};
  cache_on_host<Far> b;
  std::vector<pair> open;
  std::mt19937_64 random;
  token next = 1;
  std::int64_t compared = 0, apart = 0, refused = 0;

  static geometry with(geometry g, std::int64_t near, int slots) {
    g.near_tokens = near;
    g.hot_rows = slots;
    return g;
  }
  offload_twins(std::uint64_t seed, std::int64_t near, int slots) : b(exec, {}, with(g, near, slots)), random(seed) {}
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n)); }

  void compare(const std::vector<float>& x, const std::vector<float>& y) {
    REQUIRE(x.size() == y.size());
    for (std::size_t i = 0; i < x.size(); ++i) apart += !(x[i] == y[i]);
    compared += std::ssize(x);
  }

  /// A step of both; where near memory is too small for it, nothing has changed and the step is left out.
  void feed(const std::vector<advance>& on_a, const std::vector<advance>& on_b, bool prompt, const attend_options& how) {
    std::int64_t n = 0;
    for (const advance& e : on_a) n += e.tokens;
    const std::vector<token> ids = tokens(next, n);
    step y = [&]() -> step {
      try {
        return b.begin(exec, on_b);
      } catch (const capacity_error&) {
        ++refused;
        return b.begin(exec, std::span<const advance>{});
      }
    }();
    if (y.entries().size() != on_b.size()) return;
    next += static_cast<token>(n);
    step x = a.begin(exec, on_a);
    append_all(a, exec, x, ids);
    append_all(b, exec, y, ids);
    if (prompt) {
      observe_all(a, exec, x, ids);
      observe_all(b, exec, y, ids);
    } else {
      compare(attend_all(a, exec, x, ids, how), attend_all(b, exec, y, ids, how));
    }
    const std::int64_t dice = below(8);
    if (!prompt && dice == 0) return;  // dropped
    if (!prompt && dice == 1) {
      std::vector<std::int64_t> accepted;
      for (const advance& e : on_a) accepted.push_back(below(e.tokens + 1));
      a.commit(exec, x, accepted);
      b.commit(exec, y, accepted);
    } else {
      a.commit(exec, x);
      b.commit(exec, y);
    }
  }

  /// Another sequence, whose tokens come in steps of 40.
  void grow(std::int64_t tokens, const attend_options& how) {
    open.push_back({a.open(exec), b.open(exec)});
    for (; tokens > 0; tokens -= 40) feed({{open.back().a, 40}}, {{open.back().b, 40}}, true, how);
  }

  void step_once(const attend_options& how) {
    const std::int64_t dice = below(24);
    const auto at = open.empty() ? std::size_t{0} : static_cast<std::size_t>(below(std::ssize(open)));
    if (open.empty() || (dice == 0 && open.size() < 3)) {
      grow(40 + below(120), how);
    } else if (dice == 1 && open.size() < 3) {
      const std::int64_t n = std::max<std::int64_t>(0, a.length(open[at].a) - below(70));
      open.push_back({a.fork(exec, open[at].a, n), b.fork(exec, open[at].b, n)});
    } else if (dice == 2) {
      const std::int64_t n = std::max<std::int64_t>(0, a.length(open[at].a) - below(below(4) == 0 ? 90 : 14));
      a.truncate(exec, open[at].a, n);
      b.truncate(exec, open[at].b, n);
    } else if (dice == 3 && open.size() > 2) {
      a.close(exec, open[at].a);
      b.close(exec, open[at].b);
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(at));
    } else {
      std::vector<advance> on_a, on_b;
      for (const pair& p : open) {
        if (below(2) == 0) continue;
        const std::int64_t n = below(6) == 0 ? below(9) : 1;
        on_a.push_back({p.a, n});
        on_b.push_back({p.b, n});
      }
      feed(on_a, on_b, false, how);
    }
  }
};

template <class Near, class Far>
void decode_far(int steps, std::uint64_t seed, std::int64_t near, int slots, const attend_options& how) {
  offload_twins<Near, Far> t(seed, near, slots);
  t.grow(240, how);
  for (int i = 0; i < steps; ++i) {
    CAPTURE(i);
    t.step_once(how);
    if (i % 20 == 9) {
      for (const auto& p : t.open) CHECK(snapshot(t.a, p.a) == snapshot(t.b, p.b));
    }
  }
  t.stream.wait();
  const cache_stats stats = t.b.stats();
  CAPTURE(t.compared);
  CAPTURE(t.refused);
  CHECK(t.apart == 0);
  CHECK(t.compared > 50 * steps);
  CHECK(t.refused < steps / 4);
  CHECK(stats.far_bytes > 0);
  CHECK(stats.row_bytes + stats.far_bytes == t.a.stats().row_bytes);
  if (how.path == attend_options::route::retrieve) {
    CHECK(stats.selected_far > 0);
    CHECK(stats.selected_near > 0);
    if (slots > 30 && steps >= 60) CHECK(stats.hit_rate() > .2);
  }
}

}  // namespace kvx::test
