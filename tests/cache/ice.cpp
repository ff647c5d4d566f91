// What a cache of semantic pages attends to: dense at an unlimited budget, whole pages else, never a key that cannot be found.

#include <support/feed.hpp>
#include <support/thread_pool.hpp>

#include <kvx/kvx.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

namespace {

using namespace kvx;
using test::append_all, test::observe_all, test::token, test::tokens;
using route = attend_options::route;

constexpr page_shape small_page{.tokens = 8, .key_dim = 12, .value_dim = 10};
constexpr zones cut{.sink = 16, .local = 16};
constexpr dci_shape by_tree{
    .block = 32, .by = dci_shape::metric::diagonal, .rank = dci_shape::ranking::best_member, .first_promotion = 120};
constexpr dci_shape by_means{.block = 32, .by = dci_shape::metric::diagonal, .rank = dci_shape::ranking::mean_then_member};

template <dci_shape Shape, class Reranker = pass_through, element E = float>
using ice = cache<host, spec<paged<E, small_page, cut>, dci_tree<Shape>, Reranker>>;
using in_tiers = rsq_ip<4, tiers{.value_bits = 4, .tail = true}>;

geometry two_layers() {
  return {.layers = 2,
          .kv_heads = 2,
          .query_heads = 4,
          .max_tokens = 1000,
          .max_sequences = 3,
          .kinds = {layer_kind::dense(), layer_kind::retrieve()}};
}

/// A sequence with one step of `asked` tokens open behind `n`.
template <class Cache>
struct fixture {
  host exec = test::one_thread();
  Cache c;
  sequence s = c.open(exec);
  std::vector<token> asked;
  step open;

  fixture(std::int64_t n, std::int64_t more, const typename Cache::spec_type& of = {})
      : c(exec, of, two_layers()), asked(tokens(5000, more)), open(c.begin(exec, {})) {
    if (n > 0) tell(tokens(1, n));
    open = c.begin(exec, {{s, more}});
    append_all(c, exec, open, asked);
  }
  void tell(const std::vector<token>& ids) {
    step told = c.begin(exec, {{s, std::ssize(ids)}});
    append_all(c, exec, told, ids);
    observe_all(c, exec, told, ids);
    c.commit(exec, told);
  }
  /// Outputs, then lse, of the retrieving layer.
  std::vector<float> attend(attend_options how) {
    const auto q = test::rows_of<float>(asked, test::part::query, 1, 4, small_page.key_dim);
    std::vector<float> out(asked.size() * 4 * small_page.value_dim), lse(asked.size() * 4);
    how.lse = lse.data();
    c.attend(exec, open, 1, q.data(), out.data(), how);
    out.insert(out.end(), lse.begin(), lse.end());
    return out;
  }
};

/// Both agree up to the rounding of float sums over 600 terms.
void check_near(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  int wrong = 0;
  for (std::size_t i = 0; i < a.size(); ++i) wrong += std::abs(a[i] - b[i]) < 2e-5f ? 0 : 1;
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE_TEMPLATE("an unlimited budget is dense attention, a small one keeps its tokens", C, ice<by_tree>, ice<by_means, exact>,
                   ice<by_means, in_tiers>) {
  fixture<C> x(500, 3);
  CHECK(x.c.stats().retrieval_tokens == 480 - cut.sink);
  const auto dense = x.attend({.path = route::dense});
  check_near(x.attend({.keep = 5000, .path = route::retrieve}), dense);
  const auto with = [&](std::int64_t keep, attention_audit& audit) {
    x.attend({.keep = keep, .path = route::retrieve, .others = {.coded = false, .tail = false}, .audit = &audit});
  };
  attention_audit none, few, many;
  with(0, none);
  with(24, few);
  with(240, many);
  CHECK(none.mean_mass() < few.mean_mass());
  CHECK(few.mean_mass() < many.mean_mass());
  CHECK(many.mean_mass() < .999);
}

TEST_CASE("a group attends to the members of so many pages as its budget has, and to all of them") {
  // Values are one at the members of one page and zero elsewhere: what a page adds can be counted.
  fixture<ice<by_means>> x(500, 1);
  const auto dense = x.attend({.path = route::dense});
  std::vector<float> last;
  for (const std::int64_t pages : {1, 2, 5, 58}) {
    CAPTURE(pages);
    const auto found = x.attend({.keep = pages * 8, .path = route::retrieve});
    check_near(found, x.attend({.keep = pages * 8 + 7, .path = route::retrieve}));  // a part of a page is none
    CHECK(found != last);
    check_near(found, x.attend({.keep = 8, .pages = {.pages = static_cast<int>(pages)}, .path = route::retrieve}));
    last = found;
  }
  check_near(last, dense);
}

TEST_CASE("a call says how broadly it searches") {
  const auto mass = [](auto& x, const page_breadth& pages) {
    attention_audit audit;
    x.attend({.keep = 24, .pages = pages, .path = route::retrieve, .audit = &audit});
    return audit.mean_mass();
  };
  fixture<ice<by_tree>> tree(500, 3);
  CHECK(mass(tree, {.beam = 1}) < mass(tree, {.beam = 1000}));
  fixture<ice<by_means>> means(500, 3);
  CHECK(mass(means, {.probes = 3}) != mass(means, {.probes = 58}));
}

TEST_CASE("heads of a group rank pages as the cache's index says") {
  const attend_options few{.keep = 24, .pages = {.probes = 58}, .path = route::retrieve};
  const auto by = [&](const dci_tree<by_means>& index) { return fixture<ice<by_means>>(500, 3, {.index = index}).attend(few); };
  const auto sums = by({});
  CHECK(sums != by({.rule = {group_rule::kind::mean}}));
  CHECK(sums != by({.interleave = true}));
}

TEST_CASE("a budget below one page is refused, and the cache goes on") {
  fixture<ice<by_means>> x(200, 1);
  CHECK_THROWS_WITH_AS(x.attend({.keep = 7, .path = route::retrieve}), doctest::Contains("keep"), usage_error);
  CHECK_THROWS_AS(x.attend({.keep = -1, .path = route::retrieve}), usage_error);
  CHECK_THROWS_WITH_AS(x.attend({.keep = 8, .path = route::retrieve, .budget = {retrieve_budget::kind::layer}}),
                       doctest::Contains("budget"), usage_error);
  CHECK(x.attend({.keep = 8, .path = route::retrieve}).size() > 0);
  fixture<ice<by_means, exact>> ranked(200, 1);
  CHECK(ranked.attend({.keep = 7, .path = route::retrieve}).size() > 0);  // the best tokens of the pages found
  x.c.commit(x.exec, x.open);
  CHECK(x.c.length(x.s) == 201);
}

TEST_CASE("nothing is dropped: in tiers attention is nearer to dense, and without them it is that of the tokens kept, bit for bit") {
  fixture<ice<by_means, in_tiers>> x(500, 3);
  fixture<ice<by_means, rsq_ip<4>>> kept(500, 3);
  attend_options how{.keep = 24, .path = route::retrieve, .others = {.coded = false, .tail = false}};
  const auto hard = x.attend(how);
  CHECK(hard == kept.attend(how));
  const auto dense = x.attend({.path = route::dense});
  const auto apart = [&](const std::vector<float>& a) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += std::abs(static_cast<double>(a[i]) - static_cast<double>(dense[i]));
    return sum;
  };
  how.others = {};
  CHECK(apart(x.attend(how)) < apart(hard) / 4);
  how.keep = 0;
  CHECK(apart(x.attend(how)) < apart(hard) / 2);
}

TEST_CASE("one token, and sequences without a block, attend to what there is") {
  for (const std::int64_t n : {0, 1, 15, 16, 17, 47, 48}) {
    CAPTURE(n);
    fixture<ice<by_tree>> x(n, 2);
    check_near(x.attend({.keep = 64, .path = route::retrieve}), x.attend({.path = route::dense}));
  }
}

TEST_CASE_TEMPLATE("keys of NaN are accepted and never found; equal and zero keys are found like others", C, ice<by_tree>, ice<by_means>,
                   ice<by_means, in_tiers>) {
  fixture<C> x(0, 1);
  x.open = x.c.begin(x.exec, {});  // dropped
  const std::vector<token> ids = tokens(1, 300);
  for (const int kind : {0, 1, 2}) {
    CAPTURE(kind);
    const sequence s = x.c.open(x.exec);
    step told = x.c.begin(x.exec, {{s, 300}});
    for (int layer = 0; layer < 2; ++layer) {
      auto k = test::rows_of<float>(ids, test::part::key, layer, 2, small_page.key_dim);
      const auto v = test::rows_of<float>(ids, test::part::value, layer, 2, small_page.value_dim);
      for (std::size_t t = 100; t < 300; ++t) {
        for (std::size_t i = t * 24; i < (t + 1) * 24; ++i) {
          if (kind == 0 && t % 3 == 0 && t < 256) k[i] = t % 2 == 0 ? quiet_nan : -infinity;
          if (kind == 1) k[i] = .25f;
          if (kind == 2) k[i] = 0;
        }
      }
      x.c.append(x.exec, told, layer, k.data(), v.data());
    }
    observe_all(x.c, x.exec, told, ids);
    x.c.commit(x.exec, told);
    step more = x.c.begin(x.exec, {{s, 1}});
    append_all(x.c, x.exec, more, tokens(5000, 1));
    const auto q = test::rows_of<float>(tokens(5000, 1), test::part::query, 1, 4, small_page.key_dim);
    for (const std::int64_t keep : {64, 1000}) {
      std::vector<float> out(4 * small_page.value_dim, quiet_nan);
      x.c.attend(x.exec, more, 1, q.data(), out.data(), {.keep = keep, .path = route::retrieve});
      int wrong = 0;
      for (const float o : out) wrong += std::abs(o) <= 1 ? 0 : 1;
      CHECK(wrong == 0);
    }
    more = x.c.begin(x.exec, {});
    x.c.close(x.exec, s);
  }
}

TEST_CASE("a token that is lost for its value alone raises no page: its key's code is forgotten") {
  constexpr dci_shape by_codes{.block = 32, .by = dci_shape::metric::keys, .rank = dci_shape::ranking::coded_member};
  const host exec = test::one_thread();
  ice<by_codes, in_tiers> c(exec, {}, two_layers());
  const sequence s = c.open(exec);
  step told = c.begin(exec, {{s, 300}});
  std::vector<float> k(300 * 2 * small_page.key_dim, .01f), v(300 * 2 * small_page.value_dim);
  for (std::int64_t row = 2 * 200; row < 2 * 208; ++row) {  // a page of its own, whose values are 1
    k[static_cast<std::size_t>(row * small_page.key_dim)] = 2;
    std::fill_n(v.begin() + row * small_page.value_dim, small_page.value_dim, 1.0f);
  }
  for (std::int64_t row = 2 * 100; row < 2 * 101; ++row) {
    k[static_cast<std::size_t>(row * small_page.key_dim)] = 6;
    v[static_cast<std::size_t>(row * small_page.value_dim)] = quiet_nan;
  }
  for (int layer = 0; layer < 2; ++layer) c.append(exec, told, layer, k.data(), v.data());
  c.commit(exec, told);
  step more = c.begin(exec, {{s, 1}});
  c.append(exec, more, 1, k.data(), v.data());
  std::vector<float> q(4 * small_page.key_dim), out(4 * small_page.value_dim);
  for (std::size_t g = 0; g < 4; ++g) q[g * small_page.key_dim] = 20;
  c.attend(exec, more, 1, q.data(), out.data(), {.keep = 8, .pages = {.pages = 1}, .path = route::retrieve, .others = {false, false, 0}});
  for (const float x : out) CHECK(std::abs(x - 1) < .01f);
}

TEST_CASE("what was seen of the queries changes the packing, and dropped or cut queries do not") {
  const auto pages_of = [](auto& x, sequence s) {
    std::vector<std::byte> bytes;
    for (const std::int32_t page : x.c.pages(1, s).first(60)) {
      const std::byte* const block = x.c.column(1, column_members).at(page, 0);
      bytes.insert(bytes.end(), block, block + packed_page::scalars(8, 1));
    }
    return std::vector<std::byte>(bytes.begin() + 2 * packed_page::scalars(8, 1), bytes.end());  // sinks are in no page
  };
  fixture<ice<by_means>> x(500, 1);
  x.open = x.c.begin(x.exec, {});
  const auto seen = pages_of(x, x.s);
  const sequence blind = x.c.open(x.exec);
  test::feed(x.c, x.exec, blind, tokens(1, 500));
  CHECK(pages_of(x, blind) != seen);
  x.c.truncate(x.exec, blind, 0);
  {
    step dropped = x.c.begin(x.exec, {{blind, 300}});
    append_all(x.c, x.exec, dropped, tokens(700, 300));
    observe_all(x.c, x.exec, dropped, tokens(700, 300));
  }
  test::feed(x.c, x.exec, blind, tokens(1, 200));
  x.c.truncate(x.exec, blind, 0);
  step again = x.c.begin(x.exec, {{blind, 500}});
  append_all(x.c, x.exec, again, tokens(1, 500));
  observe_all(x.c, x.exec, again, tokens(1, 500));
  x.c.commit(x.exec, again);
  CHECK(pages_of(x, blind) == seen);
}

TEST_CASE("the metric of a block comes from every eighth position of the 1,024 before its end, pairs of channels together") {
  constexpr dci_shape members_alone{.block = 32, .by = dci_shape::metric::diagonal, .rank = dci_shape::ranking::coded_member};
  using cache_type = ice<members_alone>;
  geometry g = two_layers();
  g.max_tokens = 1500;
  g.rope = {rope_pairs::order::halves, 12};
  const host exec = test::one_thread();
  cache_type c(exec, {}, g);
  const sequence s = c.open(exec);
  const std::int64_t blocks = 40, n = blocks * 32 + cut.local;
  for (std::int64_t t = 0; t < n; t += 108) {
    step told = c.begin(exec, {{s, 108}});
    const auto ids = tokens(static_cast<token>(t + 1), 108);
    append_all(c, exec, told, ids);
    if (t != 540) observe_all(c, exec, told, ids);  // of some nothing is seen
    c.commit(exec, told);
  }
  constexpr int D = small_page.key_dim, P = small_page.tokens;
  std::vector<std::int32_t> own(static_cast<std::size_t>(blocks * 32 / P));
  std::iota(own.begin(), own.end(), 0);
  for (const int head : {0, 1}) {
    const column pitch = dci_columns(members_alone, small_page)[column_members];
    std::vector<std::byte> members(own.size() * static_cast<std::size_t>(pitch.pitch()));
    const dci_head<float> of{c.view(1), {members.data(), pitch.pitch(), 1, 0}, {}, {}, c.pages(1, s).data(), own.data(), head, cut.sink};
    std::vector<query_metric> metrics;
    std::vector<float> values(static_cast<std::size_t>(blocks) * D);
    for (std::int64_t b = 0; b < blocks; ++b) {
      query_moments moments(D, false);
      for (std::int64_t p = std::max<std::int64_t>((b + 1) * 32 - 1024, 0); p < (b + 1) * 32; ++p) {
        if (!metric_reads(p) || (p >= 540 && p < 648)) continue;
        std::vector<bf16> energies;
        for (int d = 0; d < D; ++d) {
          double sum = 0;
          for (int h = 2 * head; h < 2 * head + 2; ++h) {
            const double q = static_cast<double>(test::component(static_cast<token>(p + 1), test::part::query, 1, h, d));
            sum += q * q;
          }
          energies.push_back(round_to<bf16>(static_cast<float>(sum)));
        }
        moments.add_energies(energies.data());
      }
      metrics.push_back(moments.write(values.data() + b * D, g.rope));
    }
    std::vector<std::byte> scratch(static_cast<std::size_t>(index_blocks_bytes(members_alone, P, D, blocks * 32)) + 64);
    void* start = scratch.data();
    std::size_t space = scratch.size();
    auto* const aligned = static_cast<std::byte*>(std::align(64, 1, start, space));
    index_blocks<float>(exec, members_alone, of, 0, blocks, metrics, {aligned, space});
    std::int64_t wrong = 0;
    for (std::size_t j = cut.sink / P; j < own.size(); ++j) {
      const std::byte* const held = c.column(1, column_members).at(c.pages(1, s)[j], head);
      wrong +=
          std::memcmp(held, members.data() + j * static_cast<std::size_t>(pitch.pitch()), static_cast<std::size_t>(pitch.block_bytes)) == 0
              ? 0
              : 1;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("heads that take pages in turns, on a sequence of many pages") {
  constexpr int D = 128, G = 4;
  constexpr std::int64_t n = 4128;  // a block has just entered: nothing to spare
  const host exec = test::one_thread();
  cache<host, ice_cache_faithful<bf16, D>> c(
      exec, {}, {.layers = 1, .kv_heads = 1, .query_heads = G, .max_tokens = n + 16, .kinds = {layer_kind::retrieve()}});
  const sequence s = c.open(exec);
  std::vector<float> rows(static_cast<std::size_t>(n * D)), q(G * D), out(q.size());
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>((i * 2654435761u >> 7) % 1009) / 1009 - .5f;
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = rows[i + 700 * D];
  step told = c.begin(exec, {{s, n}});
  c.append(exec, told, 0, rows.data(), rows.data());
  c.commit(exec, told);
  step last = c.begin(exec, {{s, 1}});
  c.append(exec, last, 0, rows.data(), rows.data());
  attention_audit audit;
  c.attend(exec, last, 0, q.data(), out.data(), {.keep = 192, .path = route::retrieve, .audit = &audit});
  CHECK(audit.pairs == G);
  CHECK(audit.mean_mass() > 192.0 / n);
}

TEST_CASE("a cut that is refused changes nothing of what is derived from the columns") {
  fixture<ice<by_tree>> x(500, 1);
  const auto before = x.attend({.keep = 24, .path = route::retrieve});
  x.c.commit(x.exec, x.open);
  CHECK_THROWS_AS(x.c.truncate(x.exec, x.s, -300), usage_error);
  const sequence closed = x.c.open(x.exec);
  x.c.close(x.exec, closed);
  CHECK_THROWS_AS(x.c.close(x.exec, closed), usage_error);
  x.c.truncate(x.exec, x.s, 500);
  x.open = x.c.begin(x.exec, {{x.s, 1}});
  append_all(x.c, x.exec, x.open, x.asked);
  CHECK(x.attend({.keep = 24, .path = route::retrieve}) == before);
}

TEST_CASE("forks that part behind a block which enters with both of them find what each finds alone") {
  const auto found = [](int threads, bool together) {
    const host exec{.threads = threads, .parallel = test::std_threads()};
    ice<by_tree> c{exec, {}, two_layers()};
    const sequence a = c.open(exec);
    const auto tell = [&](const std::vector<advance>& entries, const std::vector<token>& ids) {
      step told = c.begin(exec, entries);
      append_all(c, exec, told, ids);
      c.commit(exec, told);
    };
    tell({{a, 200}}, tokens(1, 200));  // tokens 160 to 191 are a block, and recent
    const sequence b = c.fork(exec, a);
    std::vector<token> of_a = tokens(300, 64), of_b = tokens(400, 64), both = of_a;
    both.insert(both.end(), of_b.begin(), of_b.end());
    if (together) {
      tell({{a, 64}, {b, 64}}, both);
    } else {
      tell({{a, 64}}, of_a);
      tell({{b, 64}}, of_b);
    }
    const std::vector<token> asked = tokens(5000, 2);
    const auto q = test::rows_of<float>(asked, test::part::query, 1, 4, small_page.key_dim);
    std::vector<float> out(2 * 4 * small_page.value_dim);
    step open = c.begin(exec, {{a, 1}, {b, 1}});
    append_all(c, exec, open, asked);
    c.attend(exec, open, 1, q.data(), out.data(), {.keep = 24, .path = route::retrieve});
    return out;
  };
  const auto alone = found(1, false);
  CHECK(found(1, true) == alone);
  for (int i = 0; i < 8; ++i) CHECK(found(4, true) == alone);
}
