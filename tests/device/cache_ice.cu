// A cache of semantic pages on the device decodes beside the same on the host: columns, energies and outputs.

#include "cache_twins.cuh"

#include <cache/run_length.hpp>

#include <kvx/kvx.cuh>

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
using test::twins;
using route = attend_options::route;

template <element E, int D, int Dv, dci_shape Shape, class Reranker = pass_through>
using ice = spec<paged<E, page_shape{.tokens = 8, .key_dim = D, .value_dim = Dv}, zones{.sink = 8, .local = 12}>,
                 dci_tree<dci_shape(Shape)>, Reranker>;
using by_means = ice<float, 24, 16, dci_shape{.block = 32}>;
using by_coded_means = spec<paged<float, page_shape{.tokens = 2, .key_dim = 24, .value_dim = 16}, zones{.sink = 8, .local = 12}>,
                            dci_tree<dci_shape{.block = 32}>>;  // blocks of sixteen pages
using by_mean_key = ice<bf16, 40, 136, dci_shape{.block = 16, .by = dci_shape::metric::keys, .rank = dci_shape::ranking::mean_key}>;

using by_codes = ice<float, 24, 16, dci_shape{.block = 32}, rsq_ip<4>>;
using by_member_codes =
    ice<bf16, 24, 16, dci_shape{.block = 16, .pack = dci_shape::packing::positional, .rank = dci_shape::ranking::coded_member}>;
using by_codes_of_both =
    ice<float, 40, 8, dci_shape{.block = 32, .by = dci_shape::metric::keys, .rank = dci_shape::ranking::coded_member}, rsq_ip<8>>;
using by_blocks =
    ice<float, 20, 8, dci_shape{.block = 32, .pack = dci_shape::packing::greedy, .rank = dci_shape::ranking::two_level_means}>;
using by_logits = ice<kvx::half, 40, 8, dci_shape{.block = 32, .by = dci_shape::metric::keys}, exact>;

using as_published = ice_cache_faithful<bf16, 24, 16>;

using by_tree = ice<bf16, 24, 16,
                    dci_shape{.block = 32,
                              .pack = dci_shape::packing::projection,
                              .by = dci_shape::metric::keys,
                              .rank = dci_shape::ranking::best_member,
                              .first_promotion = 150}>;

using by_lines = ice<bf16, 24, 16,
                     dci_shape{.block = 32,
                               .by = dci_shape::metric::keys,
                               .rank = dci_shape::ranking::best_member,
                               .first_promotion = 150,
                               .simple = 2,
                               .composite = 2}>;

/// Energies of every committed position that is learned from, seen or not.
template <class Cache>
std::vector<std::byte> energies_of_sequence(const Cache& c, sequence s) {
  std::vector<std::byte> bytes;
  constexpr page_shape page = Cache::layout::shape;
  for (const int layer : {0, 2}) {
    const energy_column column{c.column(layer, query_column), page.key_dim, page.tokens};
    for (std::int64_t i = 0; i < learned_positions(c.length(s)); ++i) {
      for (int h = 0; h < 2; ++h) {
        const bf16* const sample = column.sample(c.pages(layer, s).data(), h, learned_position(i));
        const bool seen = !is_nan(to_float(sample[0]));
        const auto* const first = reinterpret_cast<const std::byte*>(sample);
        bytes.insert(bytes.end(), first, first + (seen ? 2 * page.key_dim : 2));
      }
    }
  }
  return bytes;
}

template <class Spec>
void decode(int steps, std::uint64_t seed, const attend_options& how, const Spec& of = {}) {
  twins<Spec> t(test::from_environment("KVX_TEST_SEED", 0) * 1000u + seed, of);
  constexpr bool large_blocks = Spec::index_type::shape.block > 32;
  if (large_blocks) t.drawn.prompt = 560;
  std::int64_t retrieved = 0;
  for (int i = 0; i < steps; ++i) {
    CAPTURE(i);
    t.step_once(how);
    retrieved = std::max(retrieved, t.a.stats().retrieval_tokens);
    if (i % 20 != 19) continue;
    t.check_all();
    if constexpr (learns_metric(Spec::index_type::shape)) {
      for (const auto& p : t.open) CHECK(energies_of_sequence(t.a, p.a) == energies_of_sequence(t.b, p.b));
    }
  }
  CHECK(t.compared > 100 * steps);
  CHECK(t.apart == 0);
  CHECK(retrieved > 0);
}

}  // namespace

TEST_CASE("300 steps with semantic pages on the device give what they give on the host") {
  decode<by_means>(300, 21, {.keep = 24, .path = route::retrieve});
}
TEST_CASE("the same where means are coded, which columns then show") {
  static_assert(codes_means(by_coded_means::index_type::shape, 2) && !codes_means(by_means::index_type::shape, 8));
  decode<by_coded_means>(60, 25, {.keep = 24, .path = route::retrieve});
}
TEST_CASE("the same by mean keys alone, with wide values of bf16") { decode<by_mean_key>(40, 22, {.keep = 16, .path = route::retrieve}); }
TEST_CASE("so few pages looked at as are kept") { decode<by_means>(40, 23, {.keep = 16, .pages = {.probes = 2}, .path = route::retrieve}); }

TEST_CASE("the best tokens of the pages found, by their codes") { decode<by_codes>(60, 25, {.keep = 12, .path = route::retrieve}); }
TEST_CASE("the same by their keys") { decode<by_logits>(40, 26, {.keep = 5, .path = route::retrieve}); }

TEST_CASE("pages by their best members, which a beam through the tree comes to; cells of the tree cut along a line") {
  decode<by_tree>(60, 27, {.keep = 16, .pages = {.beam = 3}, .path = route::retrieve});
  by_tree in_turns;  // as the paper has them
  in_turns.index.interleave = true;
  in_turns.index.reuse.layers = 2;
  decode(40, 27, {.keep = 16, .pages = {.beam = 3}, .path = route::retrieve}, in_turns);
}

TEST_CASE("the same where composite indices propose some of a beam's children, and where nobody asks them") {
  for (const int nearest : {5, 0})
    decode<by_lines>(40, 27, {.keep = 16, .pages = {.beam = 9, .nearest = nearest}, .path = route::retrieve});
}

TEST_CASE("as published, with one token of a hundred promoted") { decode<as_published>(40, 33, {.keep = 48, .path = route::retrieve}); }

TEST_CASE("pages by the codes of all members, as they come; the best tokens of such pages") {
  decode<by_member_codes>(40, 27, {.keep = 16, .path = route::retrieve});
  decode<by_codes_of_both>(40, 28, {.keep = 12, .pages = {.pages = 3}, .path = route::retrieve});
}
TEST_CASE("blocks by their means, then their pages, of nearest tokens") {
  decode<by_blocks>(40, 29, {.keep = 16, .path = route::retrieve});
}
TEST_CASE("heads that take turns, behind members and behind codes") {
  by_means members;
  members.index.interleave = true;
  decode(40, 23, {.keep = 24, .path = route::retrieve}, members);
  by_member_codes codes;
  codes.index.interleave = true;
  decode(40, 27, {.keep = 24, .path = route::retrieve}, codes);
}
TEST_CASE("layers and steps take the pages that the first of them has found, through forks, cuts and dropped steps") {
  for (const page_reuse reuse : {page_reuse{.layers = 2}, page_reuse{.steps = 3}, page_reuse{.layers = 2, .steps = 5}}) {
    CAPTURE(reuse.layers);
    CAPTURE(reuse.steps);
    by_means again;
    again.index.reuse = reuse;
    decode(60, 32, {.keep = 24, .path = route::retrieve}, again);
  }
  by_member_codes codes;
  codes.index.reuse = {.layers = 2, .steps = 2};
  codes.index.interleave = true;
  decode(40, 27, {.keep = 16, .path = route::retrieve}, codes);
}

TEST_CASE("what a dropped step, a cut, a fork's parent or a closed sequence found is taken by nobody") {
  by_means again;
  again.index.reuse = {.layers = 2, .steps = 4};
  twins<by_means> t(34, again);
  const auto attend = [](auto& c, const auto& exec, const step& open, std::span<const test::token> ids, int layer) {
    const auto q = test::rows_of<float>(ids, test::part::query, layer, 6, 24);
    std::vector<float> out(ids.size() * 6 * 16);
    c.attend(exec, open, layer, q.data(), out.data(), {.keep = 24, .path = route::retrieve});
    return out;
  };
  // A step in which these layers attend, kept or dropped.
  using part = std::pair<twins<by_means>::pair, std::int64_t>;
  const auto advance = [&](const std::vector<part>& of, const std::vector<int>& layers, bool keep) {
    std::vector<kvx::advance> batch_a, batch_b;
    std::int64_t count = 0;
    for (const auto& [s, n] : of) {
      batch_a.push_back({s.a, n});
      batch_b.push_back({s.b, n});
      count += n;
    }
    const std::vector<test::token> ids = test::tokens(t.next, count);
    t.next += static_cast<test::token>(count);
    step x = t.a.begin(t.on_host, batch_a), y = t.b.begin(t.on_device, batch_b);
    test::append_all(t.a, t.on_host, x, ids);
    test::append_all(t.b, t.on_device, y, ids);
    for (const int layer : layers) t.compare(attend(t.a, t.on_host, x, ids, layer), attend(t.b, t.on_device, y, ids, layer));
    CHECK(t.apart == 0);
    if (!keep) return;
    t.a.commit(t.on_host, x);
    t.b.commit(t.on_device, y);
  };
  const auto cut = [&](const twins<by_means>::pair& s, std::int64_t n) {
    t.a.truncate(t.on_host, s.a, n);
    t.b.truncate(t.on_device, s.b, n);
  };
  const auto fork_of = [&](const twins<by_means>::pair& s) {
    return twins<by_means>::pair{t.a.fork(t.on_host, s.a), t.b.fork(t.on_device, s.b)};
  };
  t.grow(400, {});
  const twins<by_means>::pair s = t.open[0];
  advance({{s, 1}}, {0}, false);
  advance({{s, 1}}, {2}, false);  // layer 2 takes what layer 0 finds
  advance({{s, 1}}, {0, 2}, true);
  advance({{s, 1}}, {0, 2}, true);
  cut(s, 400);
  advance({{s, 1}}, {2}, false);
  advance({{s, 1}}, {0, 2}, true);
  const twins<by_means>::pair first = fork_of(s);
  for (int i = 0; i < 4; ++i) advance({{first, 1}}, {0, 2}, true);
  t.a.close(t.on_host, first.a);
  t.b.close(t.on_device, first.b);
  advance({{s, 4}}, {0, 2}, true);
  const twins<by_means>::pair second = fork_of(s);
  advance({{second, 1}}, {0, 2}, true);  // where the first fork was, which searched at position 404
  advance({{s, 36}}, {0}, true);  // keeps nothing, and the place of position 440 is that of 400
  advance({{s, 1}}, {0}, true);
  advance({{s, 2}}, {0}, true);
  advance({{second, 36}, {s, 1}}, {0, 2}, true);  // searches at position 444, behind a prompt that goes its own way
  advance({{s, 1}}, {0, 2}, true);
  t.check_all();
}

TEST_CASE("long and short sequences and prompts in one step take their own ways") {
  twins<by_means> t(24);
  const attend_options how{.keep = 24};
  t.open = {{t.a.open(t.on_host), t.b.open(t.on_device)}, {t.a.open(t.on_host), t.b.open(t.on_device)}};
  t.feed({{t.open[0].a, 2040}, {t.open[1].a, 90}}, {{t.open[0].b, 2040}, {t.open[1].b, 90}}, true, how);
  for (const std::int64_t prompt : {35, 1})
    t.feed({{t.open[0].a, 2}, {t.open[1].a, prompt}}, {{t.open[0].b, 2}, {t.open[1].b, prompt}}, false, how);
  t.check_all();
  CHECK(t.apart == 0);
}

TEST_CASE("what a device does not do with semantic pages is refused, and the cache goes on") {
  const test::test_stream stream;
  const device exec{.stream = stream.get()};
  const geometry g{.layers = 1, .kv_heads = 1, .query_heads = 2, .max_tokens = 64, .kinds = {layer_kind::retrieve()}};
  for (const page_reuse reuse : {page_reuse{.layers = 0}, page_reuse{.steps = 33}}) {
    by_means again;
    again.index.reuse = reuse;
    CHECK_THROWS_AS((cache<device, by_means>(exec, again, g)), usage_error);
  }
  by_means again;
  again.index.reuse = {.layers = 2};
  CHECK(cache<device, by_means>(exec, again, g).stats().selection_bytes == cache<device, by_means>::bytes(g, again).selections);
  test::cache_on_host<by_means> c(exec, {}, g);
  const sequence s = c.open(exec);
  step one = c.begin(exec, {{s, 1}});
  test::append_all(c, exec, one, test::tokens(1, 1));
  CHECK_THROWS_WITH_AS(test::attend_all(c, exec, one, test::tokens(1, 1), {.keep = 7, .path = route::retrieve}), doctest::Contains("keep"),
                       usage_error);
  CHECK(test::attend_all(c, exec, one, test::tokens(1, 1), {.keep = 8, .path = route::retrieve}).size() > 0);
  c.commit(exec, one);
}
