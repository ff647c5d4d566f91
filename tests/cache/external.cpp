// Rows in the caller's own pages: what is refused, V as a view of K, and pages that the engine recycles.

#include <support/dense_attention.hpp>
#include <support/engine_pages.hpp>
#include <support/feed.hpp>

#include <kvx/kvx.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace kvx;
using test::append_all, test::attend_all, test::engine_pages, test::one_thread, test::token, test::tokens;

using small_shape = external<half, page_shape{.tokens = 4, .key_dim = 6, .value_dim = 3}>;
using small = cache<host, spec<small_shape, test::checksum_index>>;

/// An external cache of one sequence of 10 tokens, and its engine.
struct fixture {
  host exec = one_thread();
  geometry g;
  small c;
  engine_pages<half> engine;
  sequence a{};
  std::vector<std::int32_t> pages;

  explicit fixture(std::vector<layer_kind> kinds = {layer_kind::retrieve(), layer_kind::dense()})
      : g{.layers = 2, .kv_heads = 2, .query_heads = 4, .max_tokens = 40, .max_sequences = 3, .kinds = std::move(kinds), .rollback = 0},
        c(exec, {}, g),
        engine(g, small::layout::shape, {}, 40, 1),
        a(c.open(exec)) {}

  void bind() {
    for (int layer = 0; layer < g.layers; ++layer) c.bind(layer, engine.rows(layer));
  }

  /// A step of these tokens, written and appended.
  step write(token first, std::int64_t more) {
    const std::int64_t n = c.length(a);
    engine.grow(pages, n, more);
    step s = c.begin(exec, {{a, more, pages}});
    for (int layer = 0; layer < g.layers; ++layer) {
      engine.write(pages, n, tokens(first, more), layer);
      c.append(exec, s, layer);
    }
    return s;
  }

  template <class Call>
  void refuses(const std::string& part, const Call& call) {
    const auto before = test::counts(c.stats());
    CAPTURE(part);
    try {
      call();
      FAIL_CHECK("no throw");
    } catch (const usage_error& error) {
      const std::string text = error.what();
      CAPTURE(text);
      CHECK(text.find(part) != std::string::npos);
      CHECK(text.find("external.cpp:") != std::string::npos);
    }
    CHECK(test::counts(c.stats()) == before);
    CHECK_NOTHROW(c.begin(exec, {}));
  }
};

}  // namespace

TEST_CASE("layers that are not bound, and rows that cannot be this cache's") {
  fixture x;
  const std::vector<std::int32_t> pages = {0, 1, 2};
  const auto begin = [&] { x.c.begin(x.exec, {{x.a, 1, pages}}); };
  const auto unbound = [&] {
    try {
      begin();
      return false;
    } catch (const usage_error& error) {
      return std::string(error.what()).find("begin: bind the rows of every layer first") != std::string::npos;
    }
  };
  CHECK(unbound());
  x.c.bind(1, x.engine.rows(1));
  CHECK(unbound());
  CHECK(x.c.stats().pages_used == 0);
  x.bind();
  const row_view<const half> good = x.engine.rows(0);
  const auto refused = [&](const std::string& part, void (*change)(row_view<const half>&)) {
    row_view<const half> rows = good;
    change(rows);
    x.refuses(part, [&] { x.c.bind(0, rows); });
  };
  refused("heads of the rows is 4, allowed are 2 to 2", [](auto& r) { r.heads = 4; });
  refused("page_tokens of the rows is 8, allowed are 4 to 4", [](auto& r) { r.page_tokens = 8; });
  refused("key_dim of the rows is 3, allowed are 6 to 6", [](auto& r) { r.key_dim = 3; });
  refused("value_dim of the rows is 6, allowed are 3 to 3", [](auto& r) { r.value_dim = 6; });
  refused("bind: rows are null", [](auto& r) { r.key.data = nullptr; });
  refused("bind: rows are null", [](auto& r) { r.value.data = nullptr; });
  refused("a stride of the keys is less than key_dim", [](auto& r) { r.key.page_stride = 0; });
  refused("a stride of the keys is less than key_dim", [](auto& r) { r.key.head_stride = -5; });
  refused("a stride of the keys is less than key_dim", [](auto& r) { r.key.slot_stride = 5; });
  refused("a stride of the values is less than value_dim", [](auto& r) { r.value.page_stride = 2; });
  refused("a stride of the values is less than value_dim", [](auto& r) { r.value.head_stride = 0; });
  refused("a stride of the values is less than value_dim", [](auto& r) { r.value.slot_stride = -2; });
  x.refuses("layer is 2, allowed are 0 to 1", [&] { x.c.bind(2, good); });
  x.refuses("layer is -1, allowed are 0 to 1", [&] { x.c.bind(-1, good); });
  CHECK_NOTHROW(begin());
}

TEST_CASE("page tables that are too short, steps out of order") {
  fixture x;
  x.bind();
  step prompt = x.write(1, 10);
  x.refuses("append: the step has rows of this layer already", [&] { x.c.append(x.exec, prompt, 0); });
  x.refuses("layer is 2, allowed are 0 to 1", [&] { x.c.append(x.exec, prompt, 2); });
  x.c.commit(x.exec, prompt);
  x.refuses("step: committed or moved from", [&] { x.c.append(x.exec, prompt, 0); });
  const std::vector<std::int32_t> pages(4);
  x.refuses("size of an entry's page table is 0, allowed are 3 to", [&] { x.c.begin(x.exec, {{x.a, 1}}); });
  x.refuses("size of an entry's page table is 3, allowed are 4 to", [&] { x.c.begin(x.exec, {{x.a, 3, std::span(pages).first(3)}}); });
  CHECK_NOTHROW(x.c.begin(x.exec, {{x.a, 3, pages}}));
  CHECK_NOTHROW(x.c.begin(x.exec, {{x.a, 0, pages}}));
  step s = x.c.begin(x.exec, {{x.a, 3, pages}});
  const std::vector<float> q(3 * 4 * 6);
  std::vector<float> out(3 * 4 * 3);
  x.refuses("attend: append the rows of this layer first", [&] { x.c.attend(x.exec, s, 0, q.data(), out.data()); });
  x.refuses("commit: a layer was not appended", [&] { x.c.commit(x.exec, s); });
  CHECK(x.c.length(x.a) == 10);
}

TEST_CASE("an engine whose layers all have windows may recycle the pages behind them") {
  fixture x({layer_kind::window(5), layer_kind::window(6)}), y({layer_kind::window(5), layer_kind::window(6)});
  x.bind();
  y.bind();
  for (fixture* f : {&x, &y}) {
    step prompt = f->write(1, 18);
    f->c.commit(f->exec, prompt);
  }
  // The next token, 18, sees tokens from 13 on: pages 3 and 4.
  for (std::size_t page = 0; page < 3; ++page) x.pages[page] = page % 2 == 0 ? -1 : 2000000000;
  const step s = x.write(19, 1), t = y.write(19, 1);
  const std::vector<float> seen = attend_all(x.c, x.exec, s, tokens(19, 1));
  CHECK(seen == attend_all(y.c, y.exec, t, tokens(19, 1)));
  CHECK(std::count_if(seen.begin(), seen.end(), [](float value) { return value == 0 || value != value; }) == 0);
}

TEST_CASE("multi-head latent attention: V is the first 512 components of K, in the same memory") {
  constexpr page_shape shape{.tokens = 16, .key_dim = 576, .value_dim = 512};
  const host exec = one_thread();
  const geometry g{.layers = 1, .kv_heads = 1, .query_heads = 16, .max_tokens = 64, .max_sequences = 1, .kinds = {layer_kind::dense()}};
  cache<host, spec<external<bf16, shape>>> c(exec, {}, g);
  const std::vector<std::int32_t> pages = {3, 0, 2};
  std::vector<bf16> latent(4 * 16 * 576, round_to<bf16>(quiet_nan));
  const row_array<bf16> k{latent.data(), 16 * 576, 576, 576};
  c.bind(0, {k, k, 1, 16, 576, 512});
  const sequence s = c.open(exec);
  std::int64_t n = 0;
  for (const std::int64_t more : {32, 1, 5}) {  // a prompt, a token, a draft
    CAPTURE(more);
    const auto ids = tokens(static_cast<token>(n), more);
    for (std::int64_t t = n; t < n + more; ++t) {
      for (int i = 0; i < 576; ++i)
        k.at(pages[static_cast<std::size_t>(t / 16)], 0, t % 16)[i] =
            round_to<bf16>(test::component(static_cast<token>(t), test::part::key, 0, 0, i));
    }
    n += more;
    step step = c.begin(exec, {{s, more, pages}});
    c.append(exec, step, 0);
    const std::vector<float> found = attend_all(c, exec, step, ids);
    const auto q = test::rows_of<float>(ids, test::part::query, 0, 16, 576);
    const attend_item items[] = {{.pages = pages.data(), .length = n, .queries = more, .first = 0}};
    auto expected =
        test::dense_attention<bf16, float>({k, k, 1, 16, 576, 512}, items, tensor_view<const float, 3>(q.data(), more, 16, 576), {});
    expected.out.insert(expected.out.end(), expected.lse.begin(), expected.lse.end());
    REQUIRE(found.size() == expected.out.size());
    std::int64_t wrong = 0;  // NaN is wrong too
    for (std::size_t i = 0; i < found.size(); ++i) wrong += !(std::abs(expected.out[i] - static_cast<double>(found[i])) < 1e-5);
    CHECK(wrong == 0);
    c.commit(exec, step);
  }
}
