#pragma once
// Two caches to which the same is done: zones that move, forks, cuts, dropped and partly accepted steps.

#include "cache_on_host.cuh"

#include <support/feed.hpp>

#include <kvx/kvx.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

namespace kvx::test {

/// What random operations draw.
///
/// prompt      tokens of a new sequence: so many, and up to 119 more
/// piece       of which a step takes so many; 0: all
/// fork, cut   fewer tokens than these are left behind; far_cut: of every fourth cut, 0: of none
struct drawn_operations {
  std::int64_t prompt = 30;
  std::int64_t piece = 0;
  std::int64_t fork = 12;
  std::int64_t cut = 14;
  std::int64_t far_cut = 0;
};

/// The two, each with its execution.
template <class OnA, class A, class OnB, class B>
struct paired_caches {
  struct pair {
    sequence a, b;
  };
  test_stream stream;
  OnA on_a = execution<OnA>();
  OnB on_b = execution<OnB>();
  A a;
  B b;
  drawn_operations drawn;
  std::vector<pair> open;
  std::mt19937_64 random;
  token next = 1;
  std::int64_t compared = 0, apart = 0, refused = 0;
  float within = 0;   ///< outputs that differ by less are the same; 0: bits
  float rounded = 0;  ///< differences beside those, of a step in which a sequence has more than 16 query rows of a KV head

  /// policies    of both, where they are not the defaults
  template <class... Policies>
  paired_caches(std::uint64_t seed, const geometry& of_a, const geometry& of_b, const drawn_operations& what, const Policies&... policies)
      : a(on_a, {policies...}, of_a), b(on_b, {policies...}, of_b), drawn(what), random(seed) {}
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n)); }

  /// Outputs and log-sum-exps agree, of entries with up to `most` tokens.
  void compare(const std::vector<float>& x, const std::vector<float>& y, std::int64_t most = 1) {
    REQUIRE(x.size() == y.size());
    const bool rounds = most * (a.geometry().query_heads / a.geometry().kv_heads) > few_rows;
    const float least = rounds ? within + rounded : within;
    for (std::size_t i = 0; i < x.size(); ++i) apart += !(x[i] == y[i] || std::abs(x[i] - y[i]) < least);
    compared += std::ssize(x);
  }

  /// A step of both; where b has no room for it, nothing has changed and the step is left out.
  void feed(const std::vector<advance>& batch_a, const std::vector<advance>& batch_b, bool prompt, const attend_options& how) {
    std::int64_t n = 0, most = 0;
    for (const advance& e : batch_a) {
      n += e.tokens;
      most = std::max(most, e.tokens);
    }
    const std::vector<token> ids = tokens(next, n);
    step y = [&]() -> step {
      try {
        return b.begin(on_b, batch_b);
      } catch (const capacity_error&) {
        ++refused;
        return b.begin(on_b, std::span<const advance>{});
      }
    }();
    if (y.entries().size() != batch_b.size()) return;
    next += static_cast<token>(n);
    step x = a.begin(on_a, batch_a);
    append_all(a, on_a, x, ids);
    append_all(b, on_b, y, ids);
    if (prompt) {
      observe_all(a, on_a, x, ids);
      observe_all(b, on_b, y, ids);
    } else {
      compare(attend_all(a, on_a, x, ids, how), attend_all(b, on_b, y, ids, how), most);
    }
    const std::int64_t dice = below(8);
    if (!prompt && dice == 0) return;  // dropped
    if (!prompt && dice == 1) {
      std::vector<std::int64_t> accepted;
      for (const advance& e : batch_a) accepted.push_back(below(e.tokens + 1));
      a.commit(on_a, x, accepted);
      b.commit(on_b, y, accepted);
    } else {
      a.commit(on_a, x);
      b.commit(on_b, y);
    }
  }

  /// Another sequence of so many tokens, in whole pieces.
  void grow(std::int64_t tokens, const attend_options& how) {
    open.push_back({a.open(on_a), b.open(on_b)});
    const std::int64_t piece = drawn.piece > 0 ? drawn.piece : tokens;
    for (; tokens > 0; tokens -= piece) feed({{open.back().a, piece}}, {{open.back().b, piece}}, true, how);
  }

  void step_once(const attend_options& how) {
    const std::int64_t dice = below(24);
    const auto at = open.empty() ? std::size_t{0} : static_cast<std::size_t>(below(std::ssize(open)));
    if (open.empty() || (dice == 0 && open.size() < 3)) {
      grow(drawn.prompt + below(120), how);
    } else if (dice == 1 && open.size() < 3) {
      const std::int64_t n = std::max<std::int64_t>(0, a.length(open[at].a) - below(drawn.fork));
      open.push_back({a.fork(on_a, open[at].a, n), b.fork(on_b, open[at].b, n)});
    } else if (dice == 2) {
      const bool far = drawn.far_cut > 0 && below(4) == 0;
      const std::int64_t n = std::max<std::int64_t>(0, a.length(open[at].a) - below(far ? drawn.far_cut : drawn.cut));
      a.truncate(on_a, open[at].a, n);
      b.truncate(on_b, open[at].b, n);
    } else if (dice == 3 && open.size() > 2) {
      a.close(on_a, open[at].a);
      b.close(on_b, open[at].b);
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(at));
    } else {
      std::vector<advance> batch_a, batch_b;
      for (const pair& p : open) {
        if (below(2) == 0) continue;
        const std::int64_t n = below(6) == 0 ? below(9) : 1;
        batch_a.push_back({p.a, n});
        batch_b.push_back({p.b, n});
      }
      feed(batch_a, batch_b, false, how);
    }
  }

 private:
  template <class On>
  On execution() const {
    if constexpr (std::is_same_v<On, device>) {
      return {.stream = stream.get()};
    } else {
      return one_thread();
    }
  }
};

}  // namespace kvx::test
