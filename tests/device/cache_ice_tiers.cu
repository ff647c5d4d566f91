// A cache of semantic pages in tiers on the device beside the same on the host: forks, cuts, dropped and partly accepted steps, graphs.

#include "cache_twins.cuh"

#include <kvx/kvx.cuh>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

using namespace kvx;
using test::device_array, test::token, test::tokens, test::twins;
using route = attend_options::route;

template <element E, int D, int Dv, dci_shape Shape, tiers Others>
using ice = spec<paged<E, page_shape{.tokens = 8, .key_dim = D, .value_dim = Dv}, zones{.sink = 8, .local = 12}>,
                 dci_tree<dci_shape(Shape)>, rsq_ip<4, tiers(Others)>>;
constexpr tiers both{.value_bits = 4, .tail = true};
using tiered = ice<float, 24, 16, dci_shape{.block = 32}, both>;
using untiered = ice<float, 24, 16, dci_shape{.block = 32}, tiers{}>;
using by_keys = ice<bf16, 40, 20, dci_shape{.block = 16, .by = dci_shape::metric::keys, .rank = dci_shape::ranking::mean_key},
                    tiers{.value_bits = 2, .tail = true}>;
using by_tail = ice<kvx::half, 16, 136, dci_shape{.block = 32, .by = dci_shape::metric::keys}, tiers{.value_bits = 0, .tail = true}>;

using by_codes = ice<float, 24, 16, dci_shape{.block = 32, .rank = dci_shape::ranking::coded_member}, both>;
using by_codes_of_halves =
    ice<kvx::half, 40, 20, dci_shape{.block = 16, .by = dci_shape::metric::keys, .rank = dci_shape::ranking::coded_member},
        tiers{.value_bits = 0, .tail = true}>;

using by_tree =
    ice<float, 24, 16,
        dci_shape{
            .block = 32, .by = dci_shape::metric::keys, .rank = dci_shape::ranking::best_member, .first_promotion = 150, .composite = 2},
        both>;

/// Columns of values of the retrieval zone of a sequence.
template <class Cache>
std::vector<std::byte> values_of_sequence(const Cache& c, sequence s, int value_bits) {
  std::vector<std::byte> bytes;
  constexpr page_shape page = Cache::layout::shape;
  for (int i = 0; i < value_column_count; ++i) {
    const std::int64_t size = value_block_bytes(value_bits, page, static_cast<value_column>(i));
    const column_array column = c.column(0, first_page_value_column + i);
    const std::int64_t end = edge(Cache::zones, c.length(s), page.tokens) / page.tokens;
    for (std::int64_t j = Cache::zones.sink / page.tokens; column.data != nullptr && j < end; ++j) {
      for (int h = 0; h < 2; ++h) {
        const std::byte* const block = column.at(c.pages(0, s)[static_cast<std::size_t>(j)], h);
        bytes.insert(bytes.end(), block, block + size);
      }
    }
  }
  return bytes;
}

template <class Spec>
void decode(int steps, std::uint64_t seed, const attend_options& how) {
  twins<Spec> t(seed);
  t.within = 4e-3f;
  std::int64_t retrieved = 0;
  for (int i = 0; i < steps; ++i) {
    CAPTURE(i);
    attend_options now = how;
    if (i % 5 == 1) now.keep = 0;
    if (i % 5 == 2) now.keep = 32;
    if (i % 5 == 3) now.others = {.coded = false, .tail = true, .skip = 0};
    if (i % 15 == 4) now.keep = 128;
    t.step_once(now);
    retrieved += t.a.stats().retrieval_tokens;
    if (i % 20 != 19) continue;
    t.check_all();
    for (const auto& p : t.open)
      CHECK(values_of_sequence(t.a, p.a, Spec::others.value_bits) == values_of_sequence(t.b, p.b, Spec::others.value_bits));
  }
  CHECK(t.compared > 100 * steps);
  CHECK(t.apart == 0);
  CHECK(retrieved > 300);
}

/// A step replayed for two sequences, the second a fork of the first, gives what it gives when it is launched.
template <class Spec>
void replay(const device& exec, cache<device, Spec>& c, sequence s, const attend_options& how) {
  const sequence g = c.fork(exec, s);
  const std::vector<token> id = tokens(500, 1);
  const auto of = [&](test::part what, int heads, int dim) { return device_array<float>(test::rows_of<float>(id, what, 0, heads, dim)); };
  const device_array<float> k = of(test::part::key, 2, 24), v = of(test::part::value, 2, 16), q = of(test::part::query, 6, 24),
                            direct(6 * 16), replayed(6 * 16);
  const auto launch_step = [&](step& x, float* out) {
    c.append(exec, x, 0, static_cast<const float*>(k.data()), static_cast<const float*>(v.data()));
    c.attend(exec, x, 0, static_cast<const float*>(q.data()), out, how);
  };
  {
    step x = c.begin(exec, {{s, 1}});
    launch_step(x, direct.data());
  }
  cudaGraph_t nodes = nullptr;
  cudaGraphExec_t graph = nullptr;
  for (const sequence now : {s, g}) {
    step x = c.begin(exec, {{now, 1}});
    if (nodes == nullptr) {
      REQUIRE(cudaStreamBeginCapture(exec.stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
      launch_step(x, replayed.data());
      REQUIRE(cudaStreamEndCapture(exec.stream, &nodes) == cudaSuccess);
      REQUIRE(cudaGraphInstantiate(&graph, nodes, 0) == cudaSuccess);
    }
    REQUIRE(cudaGraphLaunch(graph, exec.stream) == cudaSuccess);
    CHECK(cudaStreamSynchronize(exec.stream) == cudaSuccess);
    CHECK(replayed.read() == direct.read());
  }
  (void)cudaGraphExecDestroy(graph);
  (void)cudaGraphDestroy(nodes);
}

geometry one_layer() {
  return {.layers = 1, .kv_heads = 2, .query_heads = 6, .max_tokens = 700, .max_sequences = 3, .kinds = {layer_kind::retrieve()}};
}

}  // namespace

TEST_CASE("120 steps in tiers over semantic pages give what they give on the host") {
  decode<tiered>(120, 31, {.keep = 12, .path = route::retrieve, .others = {.skip = 0}});
}
TEST_CASE("the same by mean keys, with two bits a value of bf16; means of wide values of half alone, under a soft cap") {
  decode<by_keys>(40, 22, {.keep = 5, .path = route::retrieve, .others = {.skip = 0}});
  decode<by_tail>(40, 26, {.keep = 9, .path = route::retrieve, .soft_cap = 3, .others = {.skip = 0}});
}
TEST_CASE("the same where pages are found by the codes of all members; with means of the others alone") {
  decode<by_codes>(60, 33, {.keep = 12, .path = route::retrieve, .others = {.skip = 0}});
  decode<by_codes_of_halves>(40, 34, {.keep = 9, .pages = {.pages = 3}, .path = route::retrieve, .others = {.skip = 0}});
}

TEST_CASE("the same where pages are found by members that a beam through the tree comes to, fewer than are asked for too") {
  for (const int nearest : {0, 2})
    decode<by_tree>(40, 35, {.keep = 12, .pages = {.beam = 3, .nearest = nearest}, .path = route::retrieve, .others = {.skip = 0}});
}

TEST_CASE("without coded rows and tail: what a cache without tiers gives, bit for bit; budgets are refused; a graph is the same bits") {
  const test::test_stream stream;
  const device exec{.stream = stream.get()};
  test::cache_on_host<tiered> a(exec, {}, one_layer());
  test::cache_on_host<untiered> b(exec, {}, one_layer());
  const sequence s = a.open(exec), r = b.open(exec);
  const attend_options how{.keep = 6, .path = route::retrieve};
  for (const std::int64_t n : {150, 1, 2}) {
    const std::vector<token> ids = tokens(1, n);
    step x = a.begin(exec, {{s, n}}), y = b.begin(exec, {{r, n}});
    append_all(a, exec, x, ids);
    append_all(b, exec, y, ids);
    attend_options rows = how;
    rows.others = {.coded = false, .tail = false};
    CHECK(attend_all(a, exec, x, ids, rows) == attend_all(b, exec, y, ids, rows));
    rows.budget.of = retrieve_budget::kind::layer;
    CHECK_THROWS_WITH_AS(attend_all(a, exec, x, ids, rows), doctest::Contains("budget.of must be head"), usage_error);
    a.commit(exec, x);
    b.commit(exec, y);
  }

  replay(exec, a.on_device(), s, how);
}

TEST_CASE("a graph that goes through a tree whose beam composite indices narrow is the same bits") {
  const test::test_stream stream;
  const device exec{.stream = stream.get()};
  test::cache_on_host<by_tree> c(exec, {}, one_layer());
  const sequence s = c.open(exec);
  step x = c.begin(exec, {{s, 150}});
  append_all(c, exec, x, tokens(1, 150));
  c.commit(exec, x);
  replay(exec, c.on_device(), s, {.keep = 6, .pages = {.beam = 3, .nearest = 2}, .path = route::retrieve});
}
