// Caches that are saved as they are: what is restored cannot be told from what was saved, by rows, columns, attention, and what comes
 // later.

#include "raw_caches.hpp"
#include "stored.hpp"

#include <support/feed.hpp>

#include <kvx/kvx.hpp>
#include <kvx/store/memory_store.hpp>
#include <kvx/store/prefix_index.hpp>
#include <kvx/storing.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using namespace kvx;
using namespace kvx::test;
using namespace kvx::test::raw_caches;
using pages = raw_pages;
using slabs = raw_slabs;

}  // namespace

TEST_CASE_TEMPLATE_DEFINE("a restored sequence is the one that was saved, and goes on like it", C, whole) {
  for (const std::int64_t n : {0, 1, 4, 16, 31, 77, 180}) {
    CAPTURE(n);
    pair_of<C> x;
    const sequence s = x.fed(x.a, n);
    const auto before = snapshot(x.a, s);
    const auto counted = counts(x.a.stats());
    save_well(x.a, x.exec, s, x.store, {.chunk = 50});
    CHECK(snapshot(x.a, s) == before);
    CHECK(counts(x.a.stats()) == counted);
    const sequence t = restored_well(x.b, x.exec, x.store);
    CHECK(x.b.length(t) == n);
    CHECK(counts(x.b.stats()) == counted);
    x.same(s, t);
    for (const auto& [c, of] : {std::pair(&x.a, s), std::pair(&x.b, t)}) {
      const sequence fork = c->fork(x.exec, of);
      feed(*c, x.exec, fork, tokens(500, 14));
      feed(*c, x.exec, of, tokens(600, 3));
      if (n > 16) c->truncate(x.exec, of, n - 12);
      feed(*c, x.exec, of, tokens(700, 30));
      c->truncate(x.exec, fork, n);
    }
    x.same(s, t);
    CHECK(counts(x.a.stats()) == counts(x.b.stats()));
  }
}
TEST_CASE_TEMPLATE_APPLY(whole, caches);

TEST_CASE_TEMPLATE_DEFINE("a prefix, of the save or of the restore, is what was fed up to it", C, prefixes) {
  constexpr std::int64_t n = 60;
  for (const std::int64_t kept : {0, 1, 3, 15, 16, 17, 44, 47, 59, 60}) {
    CAPTURE(kept);
    pair_of<C> x;
    const sequence s = x.fed(x.a, n), straight = x.fed(x.a, kept);
    const bool there = kept == 0 || kept >= n - 16 || !C::layout::shares_pages;  // rows that a window has left behind are gone
    if (there) {
      save_well(x.a, x.exec, s, x.store, {.tokens = kept, .chunk = 7});
      x.same(straight, restored_well(x.b, x.exec, x.store));
    } else {
      CHECK_THROWS_AS((void)x.a.save(x.exec, s, x.store, digest{}, {.tokens = kept}), usage_error);
    }
    save_well(x.a, x.exec, s, x.store, {.chunk = 7});
    const auto counted = counts(x.b.stats());
    const restored r = x.b.restore(x.exec, x.store, digest{}, {.tokens = kept});
    CHECK(r.ok() == there);
    if (r.ok()) {
      x.same(straight, r.of);
    } else {
      CHECK(r.state == status::code::mismatch);
      CHECK(counts(x.b.stats()) == counted);
    }
  }
}
TEST_CASE_TEMPLATE_APPLY(prefixes, caches);

TEST_CASE("ranges of a sequence continue one another, and leave what they continue as it was") {
  pair_of<pages> x;
  const sequence s = x.fed(x.a, 150);
  for (const std::int64_t first : {16, 40, 139}) {
    CAPTURE(first);
    const sequence base = x.fed(x.b, first + (first == 40 ? 7 : 0));
    const auto before = snapshot(x.b, base);
    save_well(x.a, x.exec, s, x.store, {.first = first, .chunk = 33});
    const sequence shorter = x.fed(x.b, first - 1);
    const auto counted = counts(x.b.stats());
    CHECK(x.b.restore(x.exec, x.store, digest{}).state == status::code::mismatch);
    CHECK(x.b.restore(x.exec, x.store, digest{}, {.after = shorter}).state == status::code::mismatch);
    CHECK(counts(x.b.stats()) == counted);
    x.b.close(x.exec, shorter);
    const restored r = x.b.restore(x.exec, x.store, digest{}, {.after = base});
    REQUIRE_MESSAGE(r.ok(), message(r.state));
    CHECK(r.tokens == 150);
    x.same(s, r.of);
    CHECK(snapshot(x.b, base) == before);
    x.b.close(x.exec, r.of);
    x.b.close(x.exec, base);
  }
}

TEST_CASE("a layer can be used as soon as it is decoded; a sequence of which some are not is not cut, forked, saved or committed to") {
  pair_of<plain> x;
  const sequence s = x.fed(x.a, 77);
  save_well(x.a, x.exec, s, x.store, {});
  auto r = x.b.restore_layers(x.exec, x.store, digest{});
  REQUIRE_MESSAGE(r.ok(), message(r.state()));
  CHECK(x.b.length(r.of()) == 77);
  const std::vector<token> ids = tokens(9000, 2);
  const std::vector<float> expected = probe(x.a, x.exec, s);
  std::vector<float> found;
  {
    step step = x.b.begin(x.exec, {{r.of(), 2}});
    append_all(x.b, x.exec, step, ids);
    for (int layer = 0; layer < 4; ++layer) {
      const auto q = rows_of<float>(ids, part::query, layer, 6, 7);
      std::vector<float> out(2 * 6 * 4), lse(2 * 6);
      CHECK(r.ready() == layer);
      CHECK_THROWS_AS(x.b.attend(x.exec, step, layer, q.data(), out.data()), usage_error);
      CHECK_THROWS_AS(x.b.commit(x.exec, step), usage_error);
      CHECK_THROWS_AS((void)x.b.fork(x.exec, r.of()), usage_error);
      CHECK_THROWS_AS((void)x.b.save(x.exec, r.of(), x.store, digest{}), usage_error);
      REQUIRE(x.b.decode_layer(x.exec, r).ok());
      x.b.attend(x.exec, step, layer, q.data(), out.data(), {.lse = lse.data()});
      found.insert(found.end(), out.begin(), out.end());
      found.insert(found.end(), lse.begin(), lse.end());
    }
  }
  CHECK(r.done());
  CHECK(found == expected);
  x.same(s, r.of());

  auto dropped = x.b.restore_layers(x.exec, x.store, digest{});
  CHECK_THROWS_AS(x.b.truncate(x.exec, dropped.of(), 3), usage_error);
  x.b.close(x.exec, dropped.of());
  CHECK_THROWS_AS((void)x.b.decode_layer(x.exec, dropped), usage_error);
}

TEST_CASE("a sequence is restored whose tokens all at once would not fit the pools of windows") {
  pair_of<pages> x;
  const sequence s = x.fed(x.a, 1000);
  save_well(x.a, x.exec, s, x.store, {});
  x.same(s, restored_well(x.b, x.exec, x.store));
  CHECK(counts(x.a.stats()) == counts(x.b.stats()));
}

TEST_CASE("a turn is restored whose tokens all at once would not fit the pools of windows") {
  for (const std::int64_t first : {3, 70, 401}) {
    for (const bool swift : {false, true}) {  // in the pools of steps of 80 tokens, and full to the last page but for what the turn needs
      CAPTURE(first);
      CAPTURE(swift);
      pair_of<pages> x;
      const sequence s = x.a.open(x.exec);
      const auto grow = [&](pages& c, sequence of, std::int64_t from, std::int64_t to) {
        for (std::int64_t at = from; at < to; at += 70)
          feed(c, x.exec, of, tokens(static_cast<token>(1 + at), std::min<std::int64_t>(70, to - at)));
      };
      geometry roomy = layers_that_differ;
      roomy.rollback = 900;  // keeps what a turn of any length needs
      pages keeper(x.exec, {}, roomy);
      const sequence kept = keeper.open(x.exec);
      grow(keeper, kept, 0, 900);
      save_well(keeper, x.exec, kept, x.store, {.first = first, .chunk = 60});
      grow(x.a, s, 0, 900);
      const sequence base = x.b.open(x.exec);
      grow(x.b, base, 0, first);
      if (swift) {
        for (int i = 0; i < 3; ++i) (void)x.fed(x.b, 180);
      }
      const auto before = snapshot(x.b, base);
      const auto counted = counts(x.b.stats());
      const restored r = x.b.restore(x.exec, x.store, digest{}, {.after = base});
      REQUIRE_MESSAGE(r.ok(), message(r.state));
      x.same(s, r.of);
      CHECK(snapshot(x.b, base) == before);
      x.b.close(x.exec, r.of);
      CHECK(counts(x.b.stats()) == counted);
    }
  }
}

TEST_CASE("a prefix that windows cannot be cut at is found shorter") {
  pair_of<pages> x;
  prefix_index prefixes;
  const digest family = x.a.family();
  const auto ids_of = [](std::int64_t n) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
    std::iota(ids.begin(), ids.end(), 1);
    return ids;
  };
  const auto keep = [&](std::int64_t n) {
    const std::vector<std::int32_t> ids = ids_of(n);
    REQUIRE(x.a.save(x.exec, x.fed(x.a, n), x.store, key_of(family, ids), {.token_ids = ids}).ok());
    prefixes.insert(family, ids, key_of(family, ids));
  };
  const auto found = [&](std::int64_t common) {
    std::vector<std::int32_t> asked = ids_of(common);
    asked.push_back(-1);
    const restored r = x.b.restore_prefix(x.exec, x.store, prefixes, asked);
    if (!r.ok()) return message(r.state);
    const sequence straight = x.fed(x.b, r.tokens);
    CHECK(snapshot(x.b, r.of) == snapshot(x.b, straight));
    x.b.close(x.exec, r.of);
    x.b.close(x.exec, straight);
    return std::to_string(r.tokens);
  };
  keep(300);
  CHECK(found(290) == "290");  // a cut that rollback allows
  CHECK(found(200) == "mismatch: frame: rows of a layer are missing");  // a window without sinks
  keep(120);
  CHECK(found(200) == "120");
  CHECK(found(110) == "110");
  CHECK(found(100) == "mismatch: frame: rows of a layer are missing");
  keep(40);
  keep(60);
  CHECK(found(100) == "60");
  REQUIRE(x.store.erase(key_of(family, ids_of(60))).ok());
  CHECK(found(100) == "40");  // what the index promised is gone
  keep(60);
  std::vector<std::byte> bytes;
  REQUIRE(read_all(x.store, key_of(family, ids_of(60)), 1 << 30, bytes).ok());
  bytes.back() ^= std::byte{1};
  REQUIRE(x.store.put(key_of(family, ids_of(60)), bytes).ok());
  CHECK(found(100) == "40");  // or damaged
  CHECK(x.b.stats().sequences == 0);

  // Where windows see the first tokens, these can always be had.
  geometry sinks = layers_that_differ;
  sinks.kinds[3] = layer_kind::window(20, 3);
  pages c(x.exec, {}, sinks), d(x.exec, {}, sinks);
  const std::vector<std::int32_t> ids = ids_of(300);
  const sequence s = c.open(x.exec);
  for (token at = 1; at < 300; at += 75) feed(c, x.exec, s, tokens(at, 75));
  memory_store other;
  prefix_index one;
  REQUIRE(c.save(x.exec, s, other, key_of(family, ids), {.token_ids = ids}).ok());
  one.insert(family, ids, key_of(family, ids));
  const restored r = d.restore_prefix(x.exec, other, one, std::span(ids).first(150));
  REQUIRE_MESSAGE(r.ok(), message(r.state));
  CHECK(r.tokens == 2);
  const sequence straight = d.open(x.exec);
  feed(d, x.exec, straight, tokens(1, 2));
  CHECK(snapshot(d, r.of) == snapshot(d, straight));
}

TEST_CASE("every byte is checked before the first layer, or with its layer where asked for") {
  pair_of<plain> x;
  const sequence s = x.fed(x.a, 77);
  save_well(x.a, x.exec, s, x.store, {});
  std::vector<std::byte> bytes;
  REQUIRE(read_all(x.store, digest{}, 1 << 30, bytes).ok());
  bytes.back() ^= std::byte{1};  // of the last layer's values
  REQUIRE(x.store.put(digest{}, bytes).ok());
  const auto counted = counts(x.b.stats());
  CHECK(x.b.restore_layers(x.exec, x.store, digest{}).state() == status::code::corrupt);
  CHECK(counts(x.b.stats()) == counted);
  auto r = x.b.restore_layers(x.exec, x.store, digest{}, {.check_first = false});
  for (int layer = 0; layer < 3; ++layer) CHECK(x.b.decode_layer(x.exec, r).ok());
  CHECK(x.b.decode_layer(x.exec, r) == status::code::corrupt);
  CHECK(r.ready() == 3);
  x.b.close(x.exec, r.of());
  CHECK(counts(x.b.stats()) == counted);
}

TEST_CASE("what does not fit is refused before anything changes") {
  pair_of<pages> x;
  const sequence s = x.fed(x.a, 100);
  save_well(x.a, x.exec, s, x.store, {});
  geometry small = layers_that_differ;
  small.max_tokens = 60;
  small.max_step_tokens = 60;
  small.max_sequences = 2;
  pages c(x.exec, {}, small);
  (void)c.open(x.exec);
  const auto before = counts(c.stats());
  CHECK_THROWS_AS((void)c.restore(x.exec, x.store, digest{}), capacity_error);
  CHECK(counts(c.stats()) == before);
  CHECK(c.restore(x.exec, x.store, digest{}, {.tokens = 86}).ok());
  CHECK_THROWS_AS((void)c.restore(x.exec, x.store, digest{}, {.tokens = 0}), capacity_error);  // no sequence is free

  const auto differs = [&](auto&& other, const char* field) {
    const auto counted = counts(other.stats());
    const restored r = other.restore(x.exec, x.store, digest{});
    CHECK(r.state == status::code::mismatch);
    CHECK_MESSAGE(std::string(r.state.what).find(field) != std::string::npos, r.state.what);
    CHECK(counts(other.stats()) == counted);
  };
  geometry g = layers_that_differ;
  g.model = field_digest().add("model", "another").finish();
  differs(pages(x.exec, {}, g), "model");
  g = layers_that_differ;
  g.kv_heads = 3;
  differs(pages(x.exec, {}, g), "KV heads");
  g = layers_that_differ;
  g.layers = 3;
  g.kinds.pop_back();
  differs(pages(x.exec, {}, g), "layers");
  differs(slabs(x.exec, {}, layers_that_differ), "key dim");
  g = layers_that_differ;
  g.kinds[2] = layer_kind::dense();
  differs(pages(x.exec, {}, g), "rows");
  CHECK(x.b.restore(x.exec, x.store, field_digest().finish()).state == status::code::not_found);

  CHECK_THROWS_AS((void)x.a.save(x.exec, s, x.store, digest{}, {.tokens = 101}), usage_error);
  CHECK_THROWS_AS((void)x.a.save(x.exec, s, x.store, digest{}, {.chunk = 0}), usage_error);
  CHECK_THROWS_AS((void)x.a.save(x.exec, s, x.store, digest{}, {.columns = true}), usage_error);  // they have no name
  const std::vector<std::int32_t> few(99);
  CHECK_THROWS_AS((void)x.a.save(x.exec, s, x.store, digest{}, {.token_ids = few}), usage_error);
}

TEST_CASE("more sections than a frame holds are refused, and what helps is said") {
  const host exec = one_thread();
  cache<host, spec<paged<bf16, page_shape{.tokens = 64, .key_dim = 1, .value_dim = 1}>>> c(
      exec, {}, {.layers = 4096, .kv_heads = 1, .query_heads = 1, .max_tokens = 129});
  const sequence s = c.open(exec);
  feed(c, exec, s, tokens(1, 129));
  memory_store store;
  std::string text;
  try {
    (void)c.save(exec, s, store, digest{}, {.chunk = 1});
  } catch (const usage_error& error) {
    text = error.what();
  }
  CAPTURE(text);
  CHECK(text.find("raw.cpp:") != std::string::npos);
  CHECK(text.find("larger chunks") != std::string::npos);
}
