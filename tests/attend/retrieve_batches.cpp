// Each entry of a ragged batch takes its own route, each layer attends in its own way, and every token takes part exactly once.

#include "../support/attended.hpp"
#include "../support/feed.hpp"

#include <kvx/kvx.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

constexpr page_shape shape{.tokens = 16, .key_dim = 40, .value_dim = 24};
constexpr zones cut{.sink = 4, .local = 32};
using small = cache<host, spec<paged<bf16, shape, cut>, sign_buckets<key_sketch{.balance = 64}>, rsq_ip<4>>>;

const host exec = one_thread();

/// Attention of a step's tokens in one layer.   out (N, Q, Dv), then lse (N, Q)
std::vector<float> attend(small& c, const step& s, int layer, std::span<const token> ids, attend_options o = {.keep = 40}) {
  const int heads = c.geometry().query_heads;
  const auto q = rows_of<float>(ids, part::query, layer, heads, shape.key_dim);
  std::vector<float> out(ids.size() * static_cast<std::size_t>(heads * shape.value_dim)), lse(ids.size() * static_cast<std::size_t>(heads));
  o.lse = lse.data();
  c.attend(exec, s, layer, q.data(), out.data(), o);
  out.insert(out.end(), lse.begin(), lse.end());
  return out;
}

/// The part of such an answer that belongs to rows [first, first + count) of n.
std::vector<float> rows_from(const std::vector<float>& all, std::size_t first, std::size_t count, std::size_t n, int heads) {
  const auto width = static_cast<std::size_t>(heads * shape.value_dim), sums = static_cast<std::size_t>(heads);
  const auto at = [&](std::size_t i) { return all.begin() + static_cast<std::ptrdiff_t>(i); };
  std::vector<float> rows(at(first * width), at((first + count) * width));
  rows.insert(rows.end(), at(n * width + first * sums), at(n * width + (first + count) * sums));
  return rows;
}

}  // namespace

TEST_CASE("long and short sequences, prompts and nothing in one batch: each entry as alone, in layers of every kind") {
  const geometry g{.layers = 4,
                   .kv_heads = 2,
                   .query_heads = 6,
                   .max_tokens = 12000,
                   .max_sequences = 6,
                   .kinds = {layer_kind::retrieve(), layer_kind::window(50, 4), layer_kind::dense(), layer_kind::retrieve()}};
  small c(exec, {}, g);
  struct part_of_batch {
    std::int64_t length, added;
    bool retrieves;
  };
  const part_of_batch parts[] = {{2100, 1, true}, {2100, 40, false}, {100, 1, false}, {0, 3, false}, {2200, 5, true}, {2050, 0, true}};
  std::vector<sequence> sequences;
  std::vector<advance> batch;
  std::vector<token> ids;
  std::vector<std::vector<float>> alone;  // (entries x layers)
  for (const part_of_batch& p : parts) {
    const auto first = static_cast<token>(10000 * sequences.size());
    const sequence s = sequences.emplace_back(c.open(exec));
    feed(c, exec, s, tokens(first, p.length));
    const auto added = tokens(first + 5000, p.added);
    const step step = [&] {
      kvx::step begun = c.begin(exec, {{s, p.added}});
      append_all(c, exec, begun, added);
      return begun;
    }();
    for (int layer = 0; layer < g.layers && p.added > 0; ++layer) {
      const auto& got = alone.emplace_back(attend(c, step, layer, added));
      attend_options dense{.keep = 40, .path = attend_options::route::dense};
      if (g.kind(layer).sees == layer_kind::attention::retrieve) CHECK((got != attend(c, step, layer, added, dense)) == p.retrieves);
    }
    batch.push_back({s, p.added});
    ids.insert(ids.end(), added.begin(), added.end());
  }
  step together = c.begin(exec, batch);
  append_all(c, exec, together, ids);
  std::vector<std::vector<float>> all;
  for (int layer = 0; layer < g.layers; ++layer) all.push_back(attend(c, together, layer, ids));
  std::size_t first = 0, next = 0;
  for (const part_of_batch& p : parts) {
    CAPTURE(p.length);
    for (std::size_t layer = 0; layer < all.size() && p.added > 0; ++layer)
      CHECK(rows_from(all[layer], first, static_cast<std::size_t>(p.added), ids.size(), g.query_heads) == alone[next++]);
    first += static_cast<std::size_t>(p.added);
  }
}

TEST_CASE("after any mix of appending, cutting, forking and refusing, every token takes part exactly once") {
  small c(exec, {},
          {.layers = 1, .kv_heads = 1, .query_heads = 2, .max_tokens = 3000, .max_sequences = 4, .kinds = {layer_kind::retrieve()}});
  std::mt19937 random(11);
  const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n)); };
  std::vector<sequence> open = {c.open(exec)};
  const auto q = rows_of<float>(tokens(1, 1), part::query, 0, 2, shape.key_dim);
  int retrieved = 0;
  for (int i = 0; i < 1500; ++i) {
    CAPTURE(i);
    sequence& s = open[static_cast<std::size_t>(below(std::ssize(open)))];
    const std::int64_t n = c.length(s), added = 1 + below(below(4) == 0 ? 90 : 9);
    switch (below(12)) {
      case 0: c.truncate(exec, s, below(n + 1)); break;
      case 1:
        if (open.size() < 4) open.push_back(c.fork(exec, s, below(n + 1)));
        break;
      case 2:
        if (open.size() > 1) {
          c.close(exec, s);
          std::swap(s, open.back());
          open.pop_back();
        }
        break;
      default: {
        if (n + added > 500) break;
        const auto ids = tokens(static_cast<token>(i) * 1000, added);
        step step = c.begin(exec, {{s, added}});
        append_all(c, exec, step, ids);
        observe_all(c, exec, step, ids);
        const std::int64_t accepted[] = {below(added + 1)};
        if (below(5) == 0) break;  // dropped
        if (below(3) == 0) {
          c.commit(exec, step, accepted);
        } else {
          c.commit(exec, step);
        }
      }
    }
    const sequence one = open[static_cast<std::size_t>(below(std::ssize(open)))];
    const std::int64_t length = c.length(one), divisor = 1 + below(7);
    attend_options o{.keep = 1000, .path = attend_options::route::retrieve};
    const auto marked = [&](int, std::int64_t t) { return t % divisor == 0; };
    for (const attended_count& head : attended(c, exec, one, 0, q, o, marked)) {
      CHECK(head.all == length + 1);
      CHECK(head.marked == (length + divisor - 1) / divisor);
    }
    o.keep = 5;  // of the zone no more than that
    const std::int64_t zone = edge(small::zones, length, shape.tokens) - cut.sink;
    retrieved += zone > 5;
    for (const attended_count& head : attended(c, exec, one, 0, q, o, marked))
      CHECK(head.all == length + 1 - std::max<std::int64_t>(0, zone - 5));
  }
  CHECK(retrieved > 300);
}

TEST_CASE_TEMPLATE("rows whose pitch needs padding, of one component and of 576: dense attention where everything is kept", Row,
                   std::integral_constant<page_shape, page_shape{16, 46, 10}>, std::integral_constant<page_shape, page_shape{16, 1, 1}>,
                   std::integral_constant<page_shape, page_shape{16, 576, 512}>) {
  cache<host, spec<paged<bf16, Row::value, cut>, sign_buckets<key_sketch{.balance = 64}>, rsq_ip<4>>> c(
      exec, {}, {.layers = 1, .kv_heads = 2, .query_heads = 10, .max_tokens = 400, .kinds = {layer_kind::retrieve()}});
  const sequence s = c.open(exec);
  feed(c, exec, s, tokens(1, 250));
  const auto ids = tokens(900, 2);
  step step = c.begin(exec, {{s, 2}});
  append_all(c, exec, step, ids);
  const auto q = rows_of<float>(ids, part::query, 0, 10, Row::value.key_dim);
  const auto out_of = [&](attend_options o) {
    std::vector<float> out(static_cast<std::size_t>(2 * 10 * Row::value.value_dim));
    c.attend(exec, step, 0, q.data(), out.data(), o);
    return out;
  };
  const auto all = out_of({.path = attend_options::route::retrieve}), dense = out_of({.path = attend_options::route::dense});
  double worst = 0;
  for (std::size_t i = 0; i < all.size(); ++i)
    worst = std::max(worst, std::fabs(static_cast<double>(all[i]) - static_cast<double>(dense[i])));
  CHECK(worst < 2e-5);
  CHECK(out_of({.keep = 3, .path = attend_options::route::retrieve}) != dense);
}

TEST_CASE("budgets and scales that are no budgets and scales are refused") {
  small c(exec, {}, {.layers = 1, .kv_heads = 1, .query_heads = 2, .max_tokens = 300, .kinds = {layer_kind::retrieve()}});
  const sequence s = c.open(exec);
  step step = c.begin(exec, {{s, 1}});
  append_all(c, exec, step, tokens(1, 1));
  const auto call = [&](attend_options o) { attend(c, step, 0, tokens(1, 1), o); };
  CHECK_THROWS_WITH_AS(call({.keep = -1}), doctest::Contains("keep is -1"), usage_error);
  CHECK_THROWS_WITH_AS(call({.scale = infinity}), doctest::Contains("scale"), usage_error);
  CHECK_THROWS_WITH_AS(call({.soft_cap = quiet_nan}), doctest::Contains("soft_cap"), usage_error);
  for (const search_breadth b :
       {search_breadth{.fraction = -1}, {.fraction = static_cast<double>(quiet_nan)}, {.per_kept = -7}, {.window = -1}})
    CHECK_NOTHROW(call({.breadth = b, .path = attend_options::route::retrieve}));  // the default, or what the rest asks for
}
