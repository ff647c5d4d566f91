// Layers that are indexed beside the caller: the same bits whenever they are done, nothing of a step that is dropped, errors where the
// caller is.

#include <support/engine_pages.hpp>
#include <support/feed.hpp>

#include <kvx/kvx.hpp>

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace kvx;
using test::snapshot, test::token, test::tokens;
using route = attend_options::route;

template <int P>
using rows_in = paged<float, page_shape{.tokens = P, .key_dim = 12, .value_dim = 10}, zones{.sink = P, .local = 20}>;
using ice = spec<rows_in<8>, dci_tree<dci_shape{.block = 32}>>;
using ice_of_cells =
    spec<rows_in<8>,
         dci_tree<dci_shape{
             .block = 32, .pack = dci_shape::packing::projection, .rank = dci_shape::ranking::best_member, .first_promotion = 120}>>;
using paris = spec<rows_in<16>, sign_buckets<key_sketch{.balance = 64}>, rsq_ip<4>>;

geometry small() {
  return {.layers = 4,
          .kv_heads = 2,
          .query_heads = 4,
          .max_tokens = 800,
          .max_sequences = 4,
          .kinds = {layer_kind::retrieve(), layer_kind::dense(), layer_kind::retrieve(), layer_kind::retrieve()}};
}
host with(int ahead) {
  host exec = test::one_thread();
  exec.index_ahead = ahead;
  return exec;
}

/// All layers of a step in the order of a forward pass. Outputs of every layer.
template <class Cache>
std::vector<float> forward(Cache& c, const host& exec, step& of, std::span<const token> ids, const attend_options& how) {
  std::vector<float> all;
  const geometry& g = c.geometry();
  for (int layer = 0; layer < g.layers; ++layer) {
    const auto k = test::rows_of<float>(ids, test::part::key, layer, g.kv_heads, Cache::layout::shape.key_dim);
    const auto v = test::rows_of<float>(ids, test::part::value, layer, g.kv_heads, Cache::layout::shape.value_dim);
    const auto q = test::rows_of<float>(ids, test::part::query, layer, g.query_heads, Cache::layout::shape.key_dim);
    c.append(exec, of, layer, k.data(), v.data());
    std::vector<float> out(ids.size() * static_cast<std::size_t>(g.query_heads * Cache::layout::shape.value_dim));
    c.attend(exec, of, layer, q.data(), out.data(), how);
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}

/// A conversation: prompts in pieces, steps that keep a part or are dropped, forks side by side, cuts. Everything that can be seen of it.
template <class Spec>
std::vector<std::byte> talk(int ahead, double* worked = nullptr) {
  const host exec = with(ahead);
  cache<host, Spec> c(exec, {}, small());
  std::vector<std::byte> seen;
  token next = 1;
  const attend_options few{.keep = 16, .path = route::retrieve};
  const auto see = [&](const std::vector<float>& out) {
    const auto bytes = std::as_bytes(std::span(out));
    seen.insert(seen.end(), bytes.begin(), bytes.end());
  };
  const auto take = [&](std::int64_t n) {
    next += static_cast<token>(n);
    return tokens(next - static_cast<token>(n), n);
  };
  const auto run = [&](sequence s, std::int64_t n, const attend_options& how, std::int64_t kept) {
    const auto ids = take(n);
    step of = c.begin(exec, {{s, n}});
    see(forward(c, exec, of, ids, how));
    if (kept < 0) return;
    const std::array<std::int64_t, 1> accepted{kept};
    c.commit(exec, of, accepted);
  };
  const sequence a = c.open(exec);
  run(a, 150, {}, 150);
  run(a, 70, {}, 33);
  run(a, 90, {}, -1);
  run(a, 90, {}, 90);
  for (int i = 0; i < 3; ++i) run(a, 3, few, 3);
  c.truncate(exec, a, 210);
  const sequence b = c.fork(exec, a, 200);
  {  // side by side: what one has begun does not hold the other up, nor the other way round
    const auto on_a = take(80), on_b = take(70);
    step x = c.begin(exec, {{a, 80}});
    see(forward(c, exec, x, on_a, {}));
    step y = c.begin(exec, {{b, 70}});
    step moved = std::move(x);
    see(forward(c, exec, y, on_b, {}));
    c.commit(exec, y);
    c.commit(exec, moved);
  }
  {  // all rows first, then all queries: what was begun without them is begun anew
    const auto ids = take(60);
    step of = c.begin(exec, {{a, 60}});
    test::append_all(c, exec, of, ids);
    see(test::attend_all(c, exec, of, ids));
    c.commit(exec, of);
  }
  for (const sequence s : {a, b}) {
    run(s, 2, few, 2);
    const std::vector<std::byte> state = snapshot(c, s);
    seen.insert(seen.end(), state.begin(), state.end());
  }
  if (worked != nullptr) *worked = c.stats().index_seconds;
  return seen;
}

/// An index that fails when it is told, where a real one runs out of memory, and may take its time.
struct failing_index {
  static constexpr std::array<column, 1> columns(page_shape) { return {column{.block_bytes = 8}}; }
};
std::atomic<int> failures{0}, encoded{0}, delay_ms{0}, in_vain{0};
std::atomic<bool> shut{false};  // pages wait until it is false, not for ever
template <class E>
void encode_page(const host&, const failing_index&, row_view<const E>, std::int32_t, int, std::array<std::byte*, 1> columns) {
  ++encoded;
  if (delay_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
  for (int ms = 0; shut; ++ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (ms == 2000) ++in_vain, shut = false;
  }
  *columns[0] = std::byte{1};
  if (failures > 0 && failures-- > 0) throw std::bad_alloc();
}
using failing = cache<host, spec<rows_in<8>, failing_index>>;

}  // namespace

TEST_CASE_TEMPLATE("index_ahead: the same bits as without", Spec, ice, ice_of_cells, paris) {
  const std::vector<std::byte> expected = talk<Spec>(0);
  double worked = 0;
  CHECK(talk<Spec>(1, &worked) == expected);
  CHECK(worked > 0);
  CHECK(talk<Spec>(3) == expected);
}

TEST_CASE("index_ahead: what the thread meets is thrown by the caller's next call, and the commit does it again") {
  const host exec = with(2);
  failing c(exec, {}, small());
  const sequence s = c.open(exec);
  const auto ids = tokens(1, 80);
  {
    failures = 1;  // in the first layer, whose columns commit would fill well
    step of = c.begin(exec, {{s, 80}});
    CHECK_THROWS_AS((forward(c, exec, of, ids, {}), c.commit(exec, of)), std::bad_alloc);
  }
  CHECK(c.length(s) == 0);
  step of = c.begin(exec, {{s, 80}});
  forward(c, exec, of, ids, {});
  while (c.stats().index_seconds == 0) std::this_thread::yield();
  failures = 1;
  CHECK_THROWS_AS(c.commit(exec, of), std::bad_alloc);  // there or in the last layer, which is indexed in commit
  c.commit(exec, of);
  CHECK(c.length(s) == 80);
}

TEST_CASE("index_ahead: no layer waits for the index of another one") {
  const host exec = with(4);
  failing c(exec, {}, small());
  const sequence s = c.open(exec);
  step of = c.begin(exec, {{s, 80}});
  shut = true;
  forward(c, exec, of, tokens(1, 80), {});
  CHECK(c.stats().index_seconds == 0);
  shut = false;
  c.commit(exec, of);
  CHECK(in_vain == 0);
  CHECK(c.length(s) == 80);
}

TEST_CASE("index_ahead: steps and caches go in the middle of it") {
  const host exec = with(4);
  const auto ids = tokens(1, 200);
  delay_ms = 2;
  encoded = 0;
  auto c = std::make_unique<failing>(exec, failing::spec_type{}, small());
  const sequence s = c->open(exec);
  {
    step dropped = c->begin(exec, {{s, 200}});
    forward(*c, exec, dropped, ids, {});
  }
  CHECK(encoded < 3 * 2 * 25);  // what had not begun was never done
  CHECK(c->stats().pages_used == 0);
  std::optional<step> left = c->begin(exec, {{s, 200}});
  forward(*c, exec, *left, ids, {});
  failing moved = std::move(*c);
  c.reset();
  moved.commit(exec, *left);
  CHECK(moved.length(s) == 200);
  {  // the page in which it goes on is a copy, given back while it is being indexed
    step forked = moved.begin(exec, {{moved.fork(exec, s, 101), 90}});
    forward(moved, exec, forked, std::span(ids).first(90), {});
  }
  delay_ms = 20;
  left = moved.begin(exec, {{s, 60}});
  forward(moved, exec, *left, std::span(ids).first(60), {});
  moved = failing(exec, {}, small());  // the memory that is being written to goes, behind who writes
  CHECK_THROWS_AS(moved.commit(exec, *left), usage_error);
  delay_ms = 2;
  left = moved.begin(exec, {{moved.open(exec), 60}});
  forward(moved, exec, *left, std::span(ids).first(60), {});
  { const failing gone = std::move(moved); }
  left.reset();
  delay_ms = 0;
}

TEST_CASE("index_ahead: a layer whose rows the caller has still to write is not begun with") {
  constexpr page_shape shape{.tokens = 8, .key_dim = 12, .value_dim = 10};
  const auto ids = tokens(1, 80);
  const auto columns_of = [&](int ahead) {
    const host exec = with(ahead);
    cache<host, spec<external<float, shape, zones{.sink = 8, .local = 20}>, test::checksum_index>> c(exec, {}, small());
    test::engine_pages<float> engine(small(), shape, {}, 20, 1);
    for (int layer = 0; layer < 4; ++layer) c.bind(layer, engine.rows(layer));
    std::vector<std::int32_t> table;
    engine.grow(table, 0, 80);
    const sequence s = c.open(exec);
    step of = c.begin(exec, {{s, 80, table}});
    test::observe_all(c, exec, of, ids);
    std::this_thread::sleep_for(std::chrono::milliseconds(ahead > 0 ? 5 : 0));
    for (int layer = 0; layer < 4; ++layer) {
      engine.write(table, 0, ids, layer);
      c.append(exec, of, layer);
    }
    c.commit(exec, of);
    std::vector<std::byte> bytes;
    for (const int layer : {0, 2, 3}) {
      for (std::size_t j = 1; j < 7; ++j) {
        for (int h = 0; h < 2; ++h) {
          const std::byte* const sum = c.column(layer, 0).at(c.pages(layer, s)[j], h);
          bytes.insert(bytes.end(), sum, sum + sizeof(std::uint64_t));
        }
      }
    }
    return bytes;
  };
  CHECK(columns_of(2) == columns_of(0));
}
