// Rows in an engine's pages: saved from there, and restored into pages of a cache, or of the engine.

#include "raw_caches.hpp"
#include "stored.hpp"

#include <support/engine_pages.hpp>
#include <support/feed.hpp>

#include <kvx/kvx.hpp>
#include <kvx/store/memory_store.hpp>
#include <kvx/storing.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

using namespace kvx;
using namespace kvx::test;
using namespace kvx::test::raw_caches;

/// All rows that an engine holds of a sequence and that some query sees, and its columns.
template <class Cache, class Engine>
std::vector<std::byte> outside_snapshot(const Cache& c, const Engine& engine, sequence s, const std::vector<std::int32_t>& table) {
  std::vector<std::byte> bytes;
  const auto add = [&](const void* from, std::size_t n) {
    const auto* const first = static_cast<const std::byte*>(from);
    bytes.insert(bytes.end(), first, first + n);
  };
  const std::int64_t n = c.length(s), P = Cache::layout::shape.tokens;
  for (int layer = 0; layer < 4; ++layer) {
    const auto rows = engine.rows(layer);
    const auto kind = layers_that_differ.kind(layer);
    for (std::int64_t t = 0; t < n; ++t) {
      if (kind.sees == layer_kind::attention::window && t >= kind.sink && t + kind.tokens <= n) continue;
      for (int h = 0; h < 2; ++h) {
        const std::int64_t page = table[static_cast<std::size_t>(t / P)];
        add(rows.key.at(page, h, t % P), sizeof(bf16) * Cache::layout::shape.key_dim);
        add(rows.value.at(page, h, t % P), sizeof(bf16) * Cache::layout::shape.value_dim);
      }
    }
  }
  const auto column = c.column(1, 0);
  for (std::int64_t page = Cache::zones.sink / P; page < edge(Cache::zones, n, P) / P; ++page) {
    for (int h = 0; h < 2; ++h)
      add(column.at(c.pages(1, s)[static_cast<std::size_t>(page)], h),
          static_cast<std::size_t>(Cache::spec_type::columns(Cache::layout::shape)[0].block_bytes));
  }
  return bytes;
}

}  // namespace

TEST_CASE("rows in an engine's pages are saved, and restored into pages of a cache, or of the engine") {
  using outside = cache<host, spec<external<bf16, raw_pages::layout::shape, raw_cut>, checksum_index>>;
  pair_of<raw_pages> x;
  engine_pages<bf16> engine(layers_that_differ, raw_pages::layout::shape, arrangements[1], 20, 1);
  outside c(x.exec, {}, layers_that_differ);
  for (int layer = 0; layer < 4; ++layer) c.bind(layer, engine.rows(layer));
  const sequence s = c.open(x.exec);
  engine_pages<bf16>::table table;
  const std::vector<token> ids = tokens(1, 77);
  engine.grow(table, 0, 77);
  {
    step step = c.begin(x.exec, {{s, 77, table}});
    for (int layer = 0; layer < 4; ++layer) {
      engine.write(table, 0, ids, layer);
      c.append(x.exec, step, layer);
    }
    c.commit(x.exec, step);
  }
  CHECK_THROWS_AS((void)c.save(x.exec, s, x.store, digest{}), usage_error);  // whose pages?
  engine_pages<bf16>::table lacking = table;
  lacking[1] = -1;
  CHECK_THROWS_WITH_AS((void)c.save(x.exec, s, x.store, digest{}, {.pages = lacking}), doctest::Contains("negative"), usage_error);
  save_well(c, x.exec, s, x.store, {.pages = table});
  x.same(x.fed(x.a, 77), restored_well(x.b, x.exec, x.store));

  // Into pages that the engine has made ready, behind the rows of a sequence that others share.
  engine_pages<bf16>::table back, shared;
  engine.grow(back, 0, 77);
  CHECK_THROWS_AS((void)c.restore(x.exec, x.store, digest{}, {.pages = back}), usage_error);  // they were bound as const
  for (int layer = 0; layer < 4; ++layer) c.bind(layer, engine.writable(layer));
  const auto counted = counts(c.stats());
  CHECK_THROWS_AS((void)c.restore(x.exec, x.store, digest{}), usage_error);  // which pages?
  CHECK(counts(c.stats()) == counted);
  const restored r = c.restore(x.exec, x.store, digest{}, {.pages = back});
  REQUIRE_MESSAGE(r.ok(), message(r.state));
  CHECK(outside_snapshot(c, engine, r.of, back) == outside_snapshot(c, engine, s, table));
  save_well(c, x.exec, s, x.store, {.first = 60, .pages = table});
  const sequence base = c.fork(x.exec, s, 60);
  shared = engine.fork(table, 60);
  engine.grow(shared, 60, 17);
  const restored turn = c.restore(x.exec, x.store, digest{}, {.after = base, .pages = shared});
  REQUIRE_MESSAGE(turn.ok(), message(turn.state));
  CHECK(outside_snapshot(c, engine, turn.of, shared) == outside_snapshot(c, engine, s, table));
}
