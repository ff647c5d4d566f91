// Retrieval over rows in the caller's own pages: codes lie under the cache's page ids, rows under the engine's.

#include <support/engine_pages.hpp>
#include <support/feed.hpp>

#include <kvx/kvx.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <type_traits>
#include <vector>

namespace {

using namespace kvx;
using test::arrangement, test::engine_pages, test::feed, test::part, test::token, test::tokens;

constexpr page_shape shape{.tokens = 16, .key_dim = 40, .value_dim = 24};

struct rows_by_codes {
  static constexpr zones cut{.sink = 4, .local = 32};
  template <class Layout>
  using type = cache<host, spec<Layout, sign_buckets<key_sketch{.balance = 64}>, rsq_ip<4>>>;
};
struct pages_in_tiers {
  static constexpr zones cut{.sink = 16, .local = 32};
  template <class Layout>
  using type = cache<host, spec<Layout, dci_tree<dci_shape{.block = 32}>, rsq_ip<4, tiers{.value_bits = 4, .tail = true}>>>;
};

/// Attention of a step's tokens in the retrieving layer.
template <class Cache>
std::vector<float> attend(Cache& c, const host& exec, const step& s, std::span<const token> ids, attend_options options) {
  const auto q = test::rows_of<float>(ids, part::query, 1, 4, shape.key_dim);
  std::vector<float> out(ids.size() * 4 * shape.value_dim), lse(ids.size() * 4);
  options.lse = lse.data();
  c.attend(exec, s, 1, q.data(), out.data(), options);
  out.insert(out.end(), lse.begin(), lse.end());
  return out;
}

}  // namespace

TEST_CASE_TEMPLATE("a paged cache and an external one retrieve the same tokens, whatever the engine does with its pages", Of, rows_by_codes,
                   pages_in_tiers) {
  using own_type = typename Of::template type<paged<half, shape, Of::cut>>;
  using other_type = typename Of::template type<external<half, shape, Of::cut>>;
  const host exec = test::one_thread();
  const geometry g{.layers = 2,
                   .kv_heads = 2,
                   .query_heads = 4,
                   .max_tokens = 800,
                   .max_sequences = 2,
                   .kinds = {layer_kind::dense(), layer_kind::retrieve()}};
  for (const arrangement a : test::arrangements) {
    CAPTURE(a.heads_first);
    CAPTURE(a.apart);
    own_type own(exec, {}, g);
    other_type other(exec, {}, g);
    engine_pages<half> engine(g, shape, a, 100, 3);
    const sequence s = own.open(exec), t = other.open(exec);
    std::vector<std::int32_t> pages, fork_pages;
    const auto bind = [&] {
      for (int layer = 0; layer < 2; ++layer) other.bind(layer, engine.rows(layer));
    };
    const auto begin = [&](sequence of, std::vector<std::int32_t>& table, std::span<const token> ids) {
      const std::int64_t n = other.length(of);
      engine.grow(table, n, static_cast<std::int64_t>(ids.size()));
      step step = other.begin(exec, {{of, static_cast<std::int64_t>(ids.size()), table}});
      for (int layer = 0; layer < 2; ++layer) {
        engine.write(table, n, ids, layer);
        other.append(exec, step, layer);
      }
      return step;
    };
    bind();
    for (const std::int64_t more : {150, 1, 90}) {
      const auto ids = tokens(static_cast<token>(own.length(s)), more);
      step own_step = own.begin(exec, {{s, more}}), step = begin(t, pages, ids);
      test::append_all(own, exec, own_step, ids);
      test::observe_all(own, exec, own_step, ids);
      test::observe_all(other, exec, step, ids);
      own.commit(exec, own_step);
      other.commit(exec, step);
    }
    CHECK(own.stats().balanced_sequences == (std::is_same_v<Of, rows_by_codes> ? 1 : 0));
    CHECK(other.stats().balanced_sequences == own.stats().balanced_sequences);
    // The fork has other tokens behind 200; then every page moves.
    const sequence f = own.fork(exec, s, 200), h = other.fork(exec, t, 200);
    fork_pages = engine.fork(pages, 200);
    feed(own, exec, f, tokens(5000, 60));
    step longer = begin(h, fork_pages, tokens(5000, 60));
    other.commit(exec, longer);
    std::vector<std::int32_t>* const tables[] = {&pages, &fork_pages};
    engine.move_all(tables);
    bind();

    const attend_options few{.keep = 20, .path = attend_options::route::retrieve};
    for (const bool forked : {false, true}) {
      const auto ids = tokens(900, 2);
      step own_step = own.begin(exec, {{forked ? f : s, 2}});
      test::append_all(own, exec, own_step, ids);
      const step other_step = begin(forked ? h : t, forked ? fork_pages : pages, ids);
      const std::vector<float> retrieved = attend(other, exec, other_step, ids, few);
      CHECK(retrieved == attend(own, exec, own_step, ids, few));
      CHECK(retrieved != attend(other, exec, other_step, ids, {.path = attend_options::route::dense}));
    }
  }
}
