// Retrieving caches: what a sequence has learned is stored with it, and codes are those of the saved one, rebuilt or stored.

#include "stored.hpp"

#include <support/feed.hpp>

#include <kvx/kvx.hpp>
#include <kvx/store/memory_store.hpp>
#include <kvx/storing.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace {

using namespace kvx;
using namespace kvx::test;

template <key_sketch Sketch, tiers Others = tiers{.value_bits = 4, .tail = true}>
using composition = spec<paged<bf16, page_shape{.tokens = 16, .key_dim = 24, .value_dim = 16}, zones{.sink = 4, .local = 32}>,
                         sign_buckets<Sketch>, rsq_ip<4, Others>>;
using spec_of_usual = composition<key_sketch{.balance = 64}>;
using usual = cache<host, spec_of_usual>;

const geometry three_layers{.layers = 3,
                            .kv_heads = 2,
                            .query_heads = 4,
                            .max_tokens = 2000,
                            .max_sequences = 5,
                            .kinds = {layer_kind::retrieve(), layer_kind::dense(), layer_kind::retrieve()},
                            .rope = {rope_pairs::order::interleaved, 16}};

const host exec = one_thread();

/// One step of these tokens whose queries are seen.
template <class Cache>
void learn(Cache& c, sequence s, const std::vector<token>& ids) {
  step step = c.begin(exec, {{s, std::ssize(ids)}});
  append_all(c, exec, step, ids);
  observe_all(c, exec, step, ids);
  c.commit(exec, step);
}

/// Rows and columns of a sequence, and what two more tokens retrieve.
template <class Cache>
std::vector<std::byte> all(Cache& c, sequence s) {
  std::vector<std::byte> bytes = snapshot(c, s);
  const std::vector<token> ids = tokens(9000, 2);
  step step = c.begin(exec, {{s, 2}});
  append_all(c, exec, step, ids);
  for (const int layer : {0, 2}) {
    const auto q = rows_of<float>(ids, part::query, layer, 4, 24);
    std::vector<float> out(2 * 4 * 16);
    c.attend(exec, step, layer, q.data(), out.data(), {.keep = 9, .path = attend_options::route::retrieve});
    const std::size_t at = bytes.size();
    bytes.resize(at + out.size() * sizeof(float));
    std::memcpy(bytes.data() + at, out.data(), out.size() * sizeof(float));
  }
  return bytes;
}

}  // namespace

TEST_CASE("what is learned, before the balance is fixed and after, comes back, and goes on alike") {
  for (const std::int64_t n : {0, 7, 8, 40, 63, 64, 95, 96, 200}) {
    for (const bool columns : {false, true}) {
      CAPTURE(n);
      CAPTURE(columns);
      usual a(exec, {}, three_layers), b(exec, {}, three_layers);
      memory_store store;
      const sequence s = a.open(exec);
      learn(a, s, tokens(1, n));
      save_well(a, exec, s, store, {.columns = columns});
      const sequence t = restored_well(b, exec, store);
      CHECK(all(a, s) == all(b, t));
      CHECK(a.stats().balanced_sequences == b.stats().balanced_sequences);
      for (usual* c : {&a, &b}) {
        const sequence of = c == &a ? s : t;
        learn(*c, of, tokens(500, 60));
        if (n > 20) c->truncate(exec, of, 20);  // below what the balance is learned from: it is learned anew
        learn(*c, of, tokens(700, 150));
      }
      CHECK(all(a, s) == all(b, t));
      CHECK(a.stats().balanced_sequences == 1);
      CHECK(b.stats().balanced_sequences == 1);
    }
  }
}

TEST_CASE("a prefix has learned what its tokens have taught, whole columns or not") {
  usual a(exec, {}, three_layers), b(exec, {}, three_layers);
  memory_store store;
  const sequence s = a.open(exec);
  learn(a, s, tokens(1, 300));
  for (const bool columns : {false, true}) {
    save_well(a, exec, s, store, {.columns = columns});
    for (const std::int64_t n : {10, 63, 64, 100, 111, 112, 299}) {
      CAPTURE(n);
      const sequence part = a.fork(exec, s, n), t = restored_well(b, exec, store, {.tokens = n});
      learn(a, part, tokens(800, 50));
      learn(b, t, tokens(800, 50));
      CHECK(all(a, part) == all(b, t));
      a.close(exec, part);
      b.close(exec, t);
    }
  }
}

TEST_CASE("layers of a balanced sequence can be used one by one") {
  usual a(exec, {}, three_layers), b(exec, {}, three_layers);
  memory_store store;
  const sequence s = a.open(exec);
  learn(a, s, tokens(1, 200));
  for (const bool columns : {false, true}) {
    save_well(a, exec, s, store, {.columns = columns});
    auto r = b.restore_layers(exec, store, digest{});
    REQUIRE(b.decode_layer(exec, r).ok());
    CHECK(r.ready() == 1);
    const std::vector<token> ids = tokens(9000, 1);
    const auto q = rows_of<float>(ids, part::query, 0, 4, 24);
    std::vector<float> out[2];
    step steps[2] = {a.begin(exec, {{s, 1}}), b.begin(exec, {{r.of(), 1}})};
    for (const int i : {0, 1}) {
      usual& c = i == 0 ? a : b;
      out[i].resize(4 * 16);
      append_all(c, exec, steps[i], ids);
      c.attend(exec, steps[i], 0, q.data(), out[i].data(), {.keep = 5, .path = attend_options::route::retrieve});
    }
    CHECK(out[0] == out[1]);
    { const step dropped[2] = {std::move(steps[0]), std::move(steps[1])}; }
    while (!r.done()) REQUIRE(b.decode_layer(exec, r).ok());
    CHECK(all(a, s) == all(b, r.of()));
  }
}

TEST_CASE("layers of a step are not indexed ahead of rows that are still to be restored") {
  host ahead = exec;
  ahead.index_ahead = 2;
  for (const std::int64_t n : {50, 200}) {  // before the balance is fixed, and after
    CAPTURE(n);
    usual a(exec, {}, three_layers), b(ahead, {}, three_layers);
    memory_store store;
    const sequence s = a.open(exec);
    learn(a, s, tokens(1, n));
    save_well(a, exec, s, store, {});
    auto r = b.restore_layers(exec, store, digest{});
    REQUIRE_MESSAGE(r.ok(), message(r.state()));
    const std::vector<token> ids = tokens(500, 90);
    learn(a, s, ids);
    step step = b.begin(ahead, {{r.of(), 90}});
    append_all(b, ahead, step, ids);
    observe_all(b, ahead, step, ids);
    while (!r.done()) REQUIRE(b.decode_layer(ahead, r).ok());
    b.commit(ahead, step);
    CHECK(all(a, s) == all(b, r.of()));
  }
}

TEST_CASE("columns of another sketch are rebuilt; a frame without a balance gives one without queries") {
  CHECK(columns_digest<spec_of_usual>() != columns_digest<composition<key_sketch{.balance = 64, .seed = 2}>>());
  CHECK(columns_digest<spec_of_usual>() != columns_digest<composition<key_sketch{.balance = 128}>>());
  CHECK(columns_digest<spec_of_usual>() != columns_digest<composition<key_sketch{.balance = 64}, tiers{.value_bits = 2, .tail = true}>>());

  usual a(exec, {}, three_layers), b(exec, {}, three_layers);
  memory_store store;
  const sequence s = a.open(exec);
  learn(a, s, tokens(1, 200));
  save_well(a, exec, s, store, {.columns = true});
  // The same frame with columns of another name, which hold something else.
  std::vector<std::byte> bytes;
  REQUIRE(read_all(store, digest{}, 1 << 30, bytes).ok());
  frame_view view;
  REQUIRE(check_frame(bytes, view).ok());
  frame_writer writer(view.header, view.header.sections);
  for (const frame_section& of : view.sections) {
    const auto payload = std::span(bytes).subspan(static_cast<std::size_t>(of.offset), static_cast<std::size_t>(of.bytes));
    if (of.kind == section_kind::column) std::fill(payload.begin(), payload.end(), std::byte{0x5a});
    writer.add(of, payload);
  }
  REQUIRE(store.put(digest{}, writer.finish()).ok());
  CHECK(all(a, s) == all(b, restored_well(b, exec, store)));

  using plain = cache<host, spec<usual::layout>>;
  plain dense(exec, {}, three_layers);
  const sequence unseen = a.open(exec), rows = dense.open(exec);
  feed(a, exec, unseen, tokens(1, 200));
  feed(dense, exec, rows, tokens(1, 200));
  save_well(dense, exec, rows, store, {});
  auto r = b.restore_layers(exec, store, digest{});
  REQUIRE(b.decode_layer(exec, r).ok());
  CHECK(r.done());  // a balance that is learned from all layers' keys leaves none behind
  CHECK(all(a, unseen) == all(b, r.of()));
}
