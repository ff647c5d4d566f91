#pragma once
// A cache on the host and one on the device to which the same is done: zones that move, forks, cuts, dropped and partly accepted steps.

#include "cache_on_host.cuh"

#include <support/feed.hpp>

#include <kvx/kvx.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace kvx::test {

/// Two caches to which the same is done.
template <class Spec>
struct twins {
  struct pair {
    sequence a, b;
  };
  geometry g{.layers = 3,
             .kv_heads = 2,
             .query_heads = 6,
             .max_tokens = 2600,
             .max_sequences = 3,
             .kinds = {layer_kind::retrieve(), layer_kind::window(20, 3), layer_kind::retrieve()},
             .rollback = 400,
             .rope = {rope_pairs::order::halves, Spec::layout_type::shape.key_dim / 2 * 2}};
  host on_host = one_thread();
  test_stream stream;
  device on_device{.stream = stream.get()};
  cache<host, Spec> a{on_host, {}, g};
  cache_on_host<Spec> b{on_device, {}, g};
  std::vector<pair> open;
  std::mt19937_64 random;
  token next = 1;
  std::int64_t compared = 0, apart = 0;
  float within = 3e-4f;

  explicit twins(std::uint64_t seed) : random(seed) {}
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n)); }

  /// Outputs and log-sum-exps agree: float sums in other orders, and exact to 2^-17 of the largest term. In tiers the host alone rounds
  /// weights of coded rows, to 1/254 of the largest: `within` is larger there.
  void compare(const std::vector<float>& x, const std::vector<float>& y) {
    REQUIRE(x.size() == y.size());
    for (std::size_t i = 0; i < x.size(); ++i) apart += !(std::abs(x[i] - y[i]) < within);
    compared += std::ssize(x);
  }

  void feed(const std::vector<advance>& on_a, const std::vector<advance>& on_b, bool prompt, const attend_options& how) {
    std::int64_t n = 0;
    for (const advance& e : on_a) n += e.tokens;
    const std::vector<token> ids = tokens(next, n);
    next += static_cast<token>(n);
    step x = a.begin(on_host, on_a), y = b.begin(on_device, on_b);
    append_all(a, on_host, x, ids);
    append_all(b, on_device, y, ids);
    if (prompt) {
      observe_all(a, on_host, x, ids);
      observe_all(b, on_device, y, ids);
    } else {
      compare(attend_all(a, on_host, x, ids, how), attend_all(b, on_device, y, ids, how));
    }
    const std::int64_t dice = below(8);
    if (!prompt && dice == 0) return;  // dropped
    if (!prompt && dice == 1) {
      std::vector<std::int64_t> accepted;
      for (const advance& e : on_a) accepted.push_back(below(e.tokens + 1));
      a.commit(on_host, x, accepted);
      b.commit(on_device, y, accepted);
    } else {
      a.commit(on_host, x);
      b.commit(on_device, y);
    }
  }

  void step_once(const attend_options& how) {
    const std::int64_t dice = below(24);
    const auto at = open.empty() ? std::size_t{0} : static_cast<std::size_t>(below(std::ssize(open)));
    if (open.empty() || (dice == 0 && open.size() < 3)) {
      open.push_back({a.open(on_host), b.open(on_device)});
      const std::int64_t n = 30 + below(120);
      feed({{open.back().a, n}}, {{open.back().b, n}}, true, how);
    } else if (dice == 1 && open.size() < 3) {
      const std::int64_t n = std::max<std::int64_t>(0, a.length(open[at].a) - below(12));
      open.push_back({a.fork(on_host, open[at].a, n), b.fork(on_device, open[at].b, n)});
    } else if (dice == 2) {
      const std::int64_t n = std::max<std::int64_t>(0, a.length(open[at].a) - below(14));
      a.truncate(on_host, open[at].a, n);
      b.truncate(on_device, open[at].b, n);
    } else if (dice == 3 && open.size() > 2) {
      a.close(on_host, open[at].a);
      b.close(on_device, open[at].b);
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

  void check_all() {
    for (const pair& p : open) CHECK(snapshot(a, p.a) == snapshot(b, p.b));
    CHECK(counts(a.stats()) == counts(b.stats()));
    CHECK(a.stats().balanced_sequences == b.stats().balanced_sequences);
  }
};

}  // namespace kvx::test
