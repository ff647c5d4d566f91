// A balance is learned from tokens and queries alone: pieces, cuts, forks and dropped steps cannot be told from one straight run.

#include <support/feed.hpp>
#include <support/key_code.hpp>

#include <kvx/kvx.hpp>
#include <kvx/sketch/balance.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

using namespace kvx;
using test::append_all, test::observe_all, test::snapshot, test::token, test::tokens;

constexpr page_shape shape{.tokens = 16, .key_dim = 40, .value_dim = 24};
constexpr zones cut{.sink = 4, .local = 32};
constexpr key_sketch learning{.balance = 64};
constexpr std::int64_t encoded_from = 96;  // the shortest length whose edge reaches 64

template <class Layout, key_sketch Sketch = learning>
using balanced = cache<host, spec<Layout, sign_buckets<Sketch>, rsq_ip<4>>>;
using pages = paged<bf16, shape, cut>;
using slabs = contiguous<bf16, shape, cut>;

const geometry two_layers{.layers = 2,
                          .kv_heads = 2,
                          .query_heads = 4,
                          .max_tokens = 2000,
                          .max_sequences = 5,
                          .kinds = {layer_kind::dense(), layer_kind::retrieve()},
                          .rope = {rope_pairs::order::interleaved, 32}};

template <class Cache>
struct fixture {
  host exec = test::one_thread();
  Cache c{exec, {}, two_layers};

  /// One step of these tokens whose queries are seen.
  void learn(sequence s, const std::vector<token>& ids) {
    step step = c.begin(exec, {{s, std::ssize(ids)}});
    append_all(c, exec, step, ids);
    observe_all(c, exec, step, ids);
    c.commit(exec, step);
  }
  sequence straight(const std::vector<token>& ids) {
    const sequence s = c.open(exec);
    learn(s, ids);
    return s;
  }

  /// Codes and rows of a sequence, and what two more tokens retrieve.
  std::vector<std::byte> all(sequence s) {
    std::vector<std::byte> bytes = snapshot(c, s);
    const std::vector<token> ids = tokens(9000, 2);
    step step = c.begin(exec, {{s, 2}});
    append_all(c, exec, step, ids);
    const auto q = test::rows_of<float>(ids, test::part::query, 1, 4, shape.key_dim);
    std::vector<float> out(2 * 4 * shape.value_dim);
    c.attend(exec, step, 1, q.data(), out.data(), {.keep = 9, .path = attend_options::route::retrieve});
    const auto* first = reinterpret_cast<const std::byte*>(out.data());
    bytes.insert(bytes.end(), first, first + out.size() * sizeof(float));
    return bytes;
  }
};

std::vector<token> joined(std::vector<token> a, const std::vector<token>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

TEST_CASE("the balance comes from the keys [sink, 64) and every eighth of their queries, and keys are encoded with it") {
  fixture<balanced<pages>> x;
  const std::vector<token> ids = tokens(1, 140);
  const sequence s = x.straight(ids);
  CHECK(x.c.stats().balanced_sequences == 1);
  const auto rows = x.c.view(1);
  const auto table = x.c.pages(1, s);
  constexpr int D = shape.key_dim;
  for (int h = 0; h < 2; ++h) {
    balance_moments moments(D);
    for (std::int64_t t = 4; t < 64; ++t) moments.add_key(rows.key.at(table[static_cast<std::size_t>(t / 16)], h, t % 16));
    for (std::size_t t = 7; t < 64; t += 8) {
      std::vector<bf16> energies;
      for (int d = 0; d < D; ++d) {
        const double q0 = test::component(ids[t], test::part::query, 1, 2 * h, d),
                     q1 = test::component(ids[t], test::part::query, 1, 2 * h + 1, d);
        energies.push_back(round_to<bf16>(static_cast<float>(q0 * q0 + q1 * q1)));
      }
      moments.add_energies(energies.data());
    }
    std::vector<float> a(D);
    moments.balance(two_layers.rope, a.data());
    for (const std::int64_t page : {0, 3, 5}) {
      const std::int32_t id = table[static_cast<std::size_t>(page)];
      std::vector<bf16> keys;
      for (int t = 0; t < 16; ++t) keys.insert(keys.end(), rows.key.at(id, h, t), rows.key.at(id, h, t) + D);
      const test::coded_page expected = test::encode_page_slowly(learning, keys, D, a.data());
      const auto equal = [&](sketch_column c, const auto& column) {
        return std::memcmp(x.c.column(1, c).at(id, h), column.data(), column.size() * sizeof(column[0])) == 0;
      };
      CHECK(equal(column_signs, expected.signs));
      CHECK(equal(column_norms, expected.norms));
      CHECK(equal(column_magnitudes, expected.magnitudes));
      CHECK(equal(column_weights, expected.weights));
      CHECK_FALSE(equal(column_magnitudes, test::encode_page_slowly(learning, keys, D, nullptr).magnitudes));
    }
  }
}

TEST_CASE_TEMPLATE("pieces, cuts, refused tokens and dropped steps leave no trace in what is learned", C, balanced<pages>,
                   balanced<slabs>) {
  fixture<C> x;
  const std::vector<token> ids = tokens(1, 150);
  const auto expected = x.all(x.straight(ids));

  const sequence pieces = x.c.open(x.exec);
  for (std::size_t at = 0; at < ids.size();) {
    const std::size_t n = std::min<std::size_t>(ids.size() - at, at % 3 == 0 ? 1 : 13);
    x.learn(pieces, {ids.begin() + static_cast<std::ptrdiff_t>(at), ids.begin() + static_cast<std::ptrdiff_t>(at + n)});
    at += n;
  }
  CHECK(x.all(pieces) == expected);

  for (const std::int64_t n : {0, 3, 40, 63, 64, 70, 95, 96, 140}) {
    CAPTURE(n);
    x.c.truncate(x.exec, pieces, n);
    CHECK(x.c.stats().balanced_sequences == (n < 64 ? 1 : 2));
    x.learn(pieces, tokens(700, 120));  // other tokens, forgotten again
    x.c.truncate(x.exec, pieces, n);
    x.learn(pieces, {ids.begin() + n, ids.end()});
    CHECK(x.all(pieces) == expected);
  }

  const sequence cut_early = x.straight(joined({ids.begin(), ids.begin() + 20}, tokens(700, 40)));
  x.c.truncate(x.exec, cut_early, 20);
  x.learn(cut_early, {ids.begin() + 20, ids.begin() + 50});
  x.learn(cut_early, {ids.begin() + 50, ids.end()});
  CHECK(x.all(cut_early) == expected);
  x.c.close(x.exec, cut_early);

  x.c.truncate(x.exec, pieces, 50);
  {
    step dropped = x.c.begin(x.exec, {{pieces, 90}});
    append_all(x.c, x.exec, dropped, tokens(800, 90));
    observe_all(x.c, x.exec, dropped, tokens(800, 90));
  }
  step partial = x.c.begin(x.exec, {{pieces, 90}});
  const std::vector<token> tried = joined({ids.begin() + 50, ids.begin() + 75}, tokens(800, 65));
  append_all(x.c, x.exec, partial, tried);
  observe_all(x.c, x.exec, partial, tried);
  const std::int64_t accepted[] = {25};
  x.c.commit(x.exec, partial, accepted);
  x.learn(pieces, {ids.begin() + 75, ids.end()});
  CHECK(x.all(pieces) == expected);
}

TEST_CASE_TEMPLATE("forks from before the balance is fixed go their own ways, forks from after it share pages", C, balanced<pages>,
                   balanced<slabs>) {
  fixture<C> x;
  const std::vector<token> common = tokens(1, 56), first = joined(common, tokens(300, 90)), second = joined(common, tokens(600, 90));
  const sequence alone = x.straight(second);
  const auto expected_second = x.all(alone);
  x.c.close(x.exec, alone);

  const sequence a = x.c.open(x.exec);
  x.learn(a, common);
  const sequence b = x.c.fork(x.exec, a);
  x.learn(a, {first.begin() + 56, first.end()});
  const auto expected_first = x.all(a);
  const std::int64_t used = x.c.stats().pages_used;
  {
    // A step that would fix another balance copies the pages it shares, and gives the copies back when it is dropped.
    const step dropped = x.c.begin(x.exec, {{b, 90}});
    if constexpr (C::layout::shares_pages) CHECK(x.c.stats().pages_used > used + 90 / 16);
  }
  CHECK(x.c.stats().pages_used == used);
  x.learn(b, {second.begin() + 56, second.end()});
  CHECK(x.all(b) == expected_second);
  CHECK(x.all(a) == expected_first);
  const sequence early = x.c.fork(x.exec, a, 40);
  x.learn(early, {second.begin() + 40, second.end()});
  CHECK(x.all(early) == expected_second);
  CHECK(x.all(a) == expected_first);
  x.c.close(x.exec, early);

  // Both in one batch, from one start that they share with nobody else.
  const sequence c = x.c.open(x.exec);
  x.learn(c, common);
  const sequence d = x.c.fork(x.exec, c);
  const std::vector<token> both = joined({first.begin() + 56, first.end()}, {second.begin() + 56, second.end()});
  step together = x.c.begin(x.exec, {{c, 90}, {d, 90}});
  append_all(x.c, x.exec, together, both);
  observe_all(x.c, x.exec, together, both);
  x.c.commit(x.exec, together);
  CHECK(x.all(c) == expected_first);
  CHECK(x.all(d) == expected_second);
  x.c.close(x.exec, c);
  x.c.close(x.exec, d);

  if constexpr (C::layout::shares_pages) {
    // Who shares pages but has encoded nothing is no reason to copy them.
    const sequence part = x.c.fork(x.exec, a, 48);
    x.c.truncate(x.exec, a, 80);
    const std::int64_t before = x.c.stats().rows_copied;
    x.learn(a, {first.begin() + 80, first.end()});
    CHECK(x.c.stats().rows_copied == before);
    CHECK(x.all(a) == expected_first);
    x.c.close(x.exec, part);

    // 80 tokens: the balance is known, though nothing is encoded yet; both forks have it, and no page is copied.
    const sequence s = x.c.open(x.exec);
    x.learn(s, {first.begin(), first.begin() + 80});
    const sequence t = x.c.fork(x.exec, s);
    const std::int64_t copied = x.c.stats().rows_copied;
    x.learn(s, {first.begin() + 80, first.end()});
    x.learn(t, {first.begin() + 80, first.end()});
    CHECK(x.c.stats().rows_copied == copied);
    CHECK(x.all(t) == expected_first);
    CHECK(x.all(s) == expected_first);
  }
}

TEST_CASE("without queries the balance is 1, and short sequences attend to everything") {
  fixture<balanced<pages>> x;
  fixture<balanced<pages, key_sketch{.balance = 0}>> plain;
  const std::vector<token> ids = tokens(1, 150);
  const sequence s = x.c.open(x.exec), t = plain.c.open(plain.exec);
  test::feed(x.c, x.exec, s, ids);
  test::feed(plain.c, plain.exec, t, ids);
  CHECK(x.c.stats().balanced_sequences == 0);
  CHECK(x.all(s) == plain.all(t));
  x.c.truncate(x.exec, s, encoded_from - 1);
  CHECK(x.c.stats().retrieval_tokens == 0);
  x.c.truncate(x.exec, s, 0);
  test::feed(x.c, x.exec, s, tokens(1, encoded_from));
  CHECK(x.c.stats().retrieval_tokens == 60);
}

TEST_CASE("a rotary embedding of more dims than keys have is refused") {
  geometry g = two_layers;
  for (const int dims : {shape.key_dim + 1, 0, -2}) {
    g.rope.dims = dims;
    CHECK_THROWS_WITH_AS((balanced<pages>(test::one_thread(), {}, g)), doctest::Contains("geometry.rope.dims"), usage_error);
  }
}

TEST_CASE("observe refuses what attend refuses") {
  fixture<balanced<pages>> x;
  const sequence s = x.c.open(x.exec);
  step step = x.c.begin(x.exec, {{s, 3}});
  std::vector<float> q(3 * 4 * 40);
  CHECK_THROWS_AS(x.c.observe(x.exec, step, 2, q.data()), usage_error);
  CHECK_THROWS_AS(x.c.observe(x.exec, step, 1, tensor_view<const float, 3>(q.data(), 3, 4, 39)), usage_error);
  append_all(x.c, x.exec, step, tokens(1, 3));
  x.c.commit(x.exec, step);
  CHECK_THROWS_AS(x.c.observe(x.exec, step, 1, q.data()), usage_error);
}
