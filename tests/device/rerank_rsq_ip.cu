// Reranking by codes on the device: logits, scores and choice equal their definition to the last bit, for every shape of code.

#include <kvx/rerank/cuda/page_terms.cuh>
#include <kvx/rerank/cuda/rsq_ip.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "device/codes_on_device.cuh"
#include "support/divided_budget.hpp"
#include "support/group_scores.hpp"

using namespace kvx;
using namespace kvx::test;

namespace {

constexpr auto one_weight = key_sketch::weighting::key;

bool same_bits(float a, float b) { return is_nan(a) ? is_nan(b) : std::memcmp(&a, &b, sizeof a) == 0; }

/// One step's reranking: queries and candidates of every unit at random, by the device and by definition.
struct step {
  key_sketch sketch = {};
  int dim = 128, page_tokens = 64, heads = 2, group = 4;
  std::int64_t tokens = 300;
  std::vector<searched_sequence> sequences = {{300, 1}};
  std::vector<std::int32_t> counts = {};  // (units), empty: random ones
  std::int64_t keep = 20, whole_below = 0;
  group_rule rule = {};
  bool residents = true;
  std::int64_t spare = 40;  // candidates planned for beyond the most that there are
  std::int64_t first_page = 0;
  bool marked = false, pooled = false;
  bool even = false;  // queries of zeros: all scores of a head are the same

  template <int Bits>
  void check(int runs = 1) {
    sketch.bits = Bits;
    const codes_on_device codes(sketch, dim, page_tokens, heads, tokens, static_cast<unsigned>(dim), sequences);
    const std::int64_t units = codes.tokens() * heads, pages = (tokens + page_tokens - 1) / page_tokens;
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    if (counts.empty()) {
      for (std::int64_t u = 0; u < units; ++u) {
        const auto most = static_cast<unsigned>(whole(u / heads) ? whole_below : tokens - first_page * page_tokens);
        counts.push_back(static_cast<std::int32_t>(random() % most));
      }
    }
    REQUIRE(std::ssize(counts) == units);
    std::vector<std::vector<std::int32_t>> ids;
    std::int64_t most = 0;
    for (const std::int32_t n : counts) {
      std::vector<std::int32_t> all, some;
      for (auto t = static_cast<std::int32_t>(first_page * page_tokens); t < tokens; ++t) all.push_back(t);
      std::sample(all.begin(), all.end(), std::back_inserter(some), n, random);
      most = std::max<std::int64_t>(most, n);
      ids.push_back(some);
    }
    std::vector<float> plain, rotated, lse;
    for (std::int64_t i = 0; i < units * group * dim; ++i) {
      plain.push_back(even ? 0 : normal(random));
      rotated.push_back(even ? 0 : normal(random));
    }
    for (std::int64_t i = 0; i < units * group; ++i) lse.push_back(2 * normal(random));

    rerank_shape shape;
    shape.heads = heads;
    shape.group = group;
    shape.tokens = codes.tokens();
    shape.candidates = most + spare;
    shape.keep = keep;
    shape.whole_below = whole_below;
    shape.marked = marked;
    shape.pooled = pooled;
    const device_array<std::byte> memory(std::vector<std::byte>(static_cast<std::size_t>(rerank_scratch({}, shape)), std::byte{0x7e}));
    scratch_parts parts{memory.data()};
    const rerank_output out = plan_rerank(shape, parts);
    const std::int64_t pitch = most + 3;
    std::vector<std::int32_t> padded(static_cast<std::size_t>(units * pitch), -1);
    const std::int64_t page_pitch = pages - first_page + 2;
    std::vector<float> dots(static_cast<std::size_t>(units * page_pitch * group), quiet_nan);
    for (std::int64_t u = 0; u < units; ++u) {
      std::copy(ids[static_cast<std::size_t>(u)].begin(), ids[static_cast<std::size_t>(u)].end(), padded.begin() + u * pitch);
      const head_view<float> from = codes.head(u / heads, u % heads);
      for (std::int64_t g = 0; sketch.centre && g < group; ++g) {
        std::vector<float> page_query(static_cast<std::size_t>(sign_sum_parts::page_pitch(dim)));
        fill_page_query(plain.data() + (u * group + g) * dim, dim, page_query.data());
        for (std::int64_t p = first_page; p < pages && !ids[static_cast<std::size_t>(u)].empty(); ++p) {
          if (p > ids[static_cast<std::size_t>(u)].back() / page_tokens) break;  // pages of no candidate are not looked at
          dots[static_cast<std::size_t>((u * page_pitch + p - first_page) * group + g)] =
              page_dot(page_query, code_of(from.columns, from.pages[p], from.head).means, dim);
        }
      }
    }
    const device_array<std::int32_t> d_ids(padded), d_counts(counts);
    const device_array<float> d_plain(plain), d_rotated(rotated), d_lse(lse), d_dots(dots.size());
    rerank_input in;
    in.ids = d_ids.data();
    in.counts = d_counts.data();
    in.id_pitch = pitch;
    in.plain = d_plain.data();
    in.rotated = d_rotated.data();
    in.lse = residents ? d_lse.data() : nullptr;
    in.page_dots = d_dots.data();
    in.page_pitch = page_pitch;
    in.first_page = first_page;
    const test_stream stream;
    const device exec{.stream = stream.get()};
    clear_rerank(exec, out);
    if (sketch.centre) leave_page_dots(exec, {page_tokens, dim, dim}, codes.columns(), codes.batch(), in, shape, d_dots.data());
    for (int run = 0; run < runs; ++run)  // the counters come back to 0 by themselves
      rerank(exec, rsq_ip<Bits>{rule}, sketch, {page_tokens, dim, dim}, codes.columns(), codes.batch(), in, out);
    stream.wait();
    const auto left_dots = d_dots.read();
    CHECK(std::equal(dots.begin(), dots.end(), left_dots.begin(), same_bits));

    const auto left = memory.read();
    const auto at = [&]<class T>(const T* p) {
      return reinterpret_cast<const T*>(left.data() + (reinterpret_cast<const std::byte*>(p) - memory.data()));
    };
    for (std::int64_t i = 0; i < shape.counters_needed(); ++i) CHECK(at(out.counters)[i] == 0);
    std::vector<std::vector<float>> scores(static_cast<std::size_t>(units));
    for (std::int64_t u = 0; u < units; ++u) {
      CAPTURE(u);
      const auto& mine = ids[static_cast<std::size_t>(u)];
      const std::int64_t n = std::ssize(mine);
      const bool scored = !sketch.norms || marked || (pooled && !whole(u / heads)) || n > kept_alone(u / heads, n);
      scores[static_cast<std::size_t>(u)].assign(static_cast<std::size_t>(n), 0);  // where all are kept without a look, all are as good
      if (scored && n > 0) {
        const kvx::group_queries q{tensor_view<const float, 2>(plain.data() + u * group * dim, group, dim),
                                   tensor_view<const float, 2>(rotated.data() + u * group * dim, group, dim)};
        const auto logits = code_logits<Bits>(sketch, codes.head(u / heads, u % heads), q, mine);
        bool same = true;
        for (std::int64_t g = 0; g < group; ++g) {
          for (std::int64_t t = 0; t < n; ++t)
            same = same && same_bits(logits[static_cast<std::size_t>(g * n + t)], at(out.logits_of(u))[g * out.pitch + t]);
        }
        CHECK(same);
        const std::vector<float> resident =
            residents ? std::vector<float>(lse.begin() + u * group, lse.begin() + (u + 1) * group) : std::vector<float>{};
        scores[static_cast<std::size_t>(u)] = group_scores_slowly(rule.by, logits, group, n, resident);
      }
    }
    for (std::int64_t u = 0; u < units; ++u) {
      CAPTURE(u);
      const std::int64_t token = u / heads, n = counts[static_cast<std::size_t>(u)];
      const auto first = scores.begin() + static_cast<std::ptrdiff_t>(token * heads);
      const std::vector<std::size_t> expected =
          pooled && !whole(token)
              ? divided_budget({first, first + heads}, heads * std::min(keep, tokens))[static_cast<std::size_t>(u % heads)]
              : divided_budget({scores[static_cast<std::size_t>(u)]}, kept_alone(token, n))[0];
      REQUIRE(at(out.chosen_counts)[u] == std::ssize(expected));
      std::vector<std::uint8_t> marks(static_cast<std::size_t>(n));
      bool same = true;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        same = same && at(out.chosen_of(u))[i] == ids[static_cast<std::size_t>(u)][expected[i]];
        marks[expected[i]] = 1;
      }
      CHECK(same);
      if (marked) CHECK(std::equal(marks.begin(), marks.end(), at(out.marks + u * out.pitch)));
    }
  }

  bool whole(std::int64_t token) const {
    const searched_sequence& of = sequences[static_cast<std::size_t>(entry(token))];
    return of.length - of.queries < whole_below;
  }
  std::int64_t kept_alone(std::int64_t token, std::int64_t n) const { return whole(token) ? std::max(keep, n) : keep; }

  std::int64_t entry(std::int64_t token) const {
    std::int64_t e = 0;
    while (token >= sequences[static_cast<std::size_t>(e)].queries) token -= sequences[static_cast<std::size_t>(e++)].queries;
    return e;
  }
};

}  // namespace

TEST_CASE("every head dim, with 4 bits and each width of a subspace") {
  for (int d = 1; d <= 576; d += d < 73 ? 1 : 29) {
    CAPTURE(d);
    step{.sketch = {.subspace = 4 << d % 3}, .dim = d, .heads = 1, .group = 2, .tokens = 100, .counts = {40}, .keep = 10}.check<4>();
    step{.sketch = {.weights = one_weight}, .dim = d, .heads = 1, .group = 1, .tokens = 100, .counts = {40}, .keep = 10}.check<4>();
  }
}

TEST_CASE("2, 4 and 8 bits, every subspace, one weight a key") {
  for (const int d : {5, 72, 80, 96, 128, 130}) {
    CAPTURE(d);
    for (const int m : {4, 8, 16}) {
      CAPTURE(m);
      step{.sketch = {.subspace = m}, .dim = d, .heads = 1, .group = 3, .tokens = 100, .counts = {50}, .keep = 10}.check<2>();
      step{.sketch = {.subspace = m}, .dim = d, .heads = 1, .group = 3, .tokens = 100, .counts = {50}, .keep = 10}.check<4>();
      step{.sketch = {.subspace = m}, .dim = d, .heads = 1, .group = 3, .tokens = 100, .counts = {50}, .keep = 10}.check<8>();
    }
    step{.sketch = {.weights = one_weight}, .dim = d, .heads = 1, .group = 4, .tokens = 100, .counts = {50}, .keep = 10}.check<2>();
    step{.sketch = {.weights = one_weight}, .dim = d, .heads = 1, .group = 4, .tokens = 100, .counts = {50}, .keep = 10}.check<8>();
  }
}

TEST_CASE("groups 1 to 16, 64 and 128; every rule; with and without residents, centre and norms") {
  int turn = 0;
  for (int group = 1; group <= 18; ++group, ++turn) {
    const int G = group == 17 ? 64 : group == 18 ? 128 : group;
    CAPTURE(G);
    const auto by = static_cast<group_rule::kind>(turn % 3);
    step{.sketch = {.centre = turn % 2 == 0, .norms = turn % 5 != 0},
         .dim = 40,
         .heads = 1,
         .group = G,
         .counts = {90},
         .rule = {by},
         .residents = turn % 4 != 0}
        .check<4>();
  }
}

TEST_CASE("every page size, several heads, sequences and new tokens, any number of candidates, more than a block's") {
  for (int page = 1; page <= 512; page *= 4) {
    CAPTURE(page);
    step{.dim = 24,
         .page_tokens = page,
         .heads = 3,
         .group = 2,
         .sequences = {{300, 2}, {200, 1}, {0, 0}, {64, 1}},
         .first_page = page < 64 ? 3 : 0}
        .check<4>();
  }
  step{.dim = 16, .heads = 2, .group = 2, .tokens = 1700, .sequences = {{1700, 4}}, .counts = {0, 1, 511, 512, 513, 1024, 1025, 1700}}
      .check<4>(3);
  step{.dim = 16, .heads = 1, .group = 1, .tokens = 2000, .sequences = {{2000, 1}}, .counts = {1900}, .spare = most_shared_scores}.check<4>(
      2);
}

TEST_CASE("as many as are kept, one more; nothing kept; sequences that keep all of their zone") {
  for (const bool norms : {true, false}) {
    step{.sketch = {.norms = norms}, .dim = 16, .heads = 1, .group = 2, .sequences = {{300, 5}}, .counts = {0, 19, 20, 21, 300}}.check<4>();
    step{.sketch = {.norms = norms}, .dim = 16, .heads = 1, .group = 2, .sequences = {{300, 2}}, .counts = {0, 30}, .keep = 0}.check<4>();
    step{.sketch = {.norms = norms},
         .dim = 16,
         .heads = 1,
         .group = 2,
         .sequences = {{100, 1}, {101, 1}, {300, 1}},
         .counts = {60, 60, 60},
         .whole_below = 100}
        .check<4>();
  }
}

TEST_CASE("a budget of the layer: the best of all heads together, ties to the lowest head and candidate") {
  constexpr std::int64_t everything = INT64_MAX;
  int turn = 0;
  for (const int heads : {1, 2, 8}) {
    for (const std::int64_t keep : {std::int64_t{0}, std::int64_t{1}, std::int64_t{20}, std::int64_t{70}, everything}) {
      CAPTURE(heads);
      CAPTURE(keep);
      const int group = 1 + turn % 16;
      ++turn;
      step{.sketch = {.centre = turn % 2 == 0, .norms = turn % 3 != 0},
           .dim = 16,
           .heads = heads,
           .group = group,
           .sequences = {{300, 2}, {90, 1}, {0, 0}, {200, 1}},
           .keep = keep,
           .whole_below = turn % 4 == 1 ? 100 : 0,
           .rule = {static_cast<group_rule::kind>(2 - turn % 3)},
           .marked = turn % 2 == 0,
           .pooled = true}
          .check<4>(2);
    }
  }
  step a{.dim = 8, .heads = 3, .group = 2, .counts = {10, 40, 290}, .pooled = true, .even = true};  // ties
  a.check<4>();
  a.rule.by = group_rule::kind::max;
  a.check<4>();
  step b{.dim = 8, .heads = 4, .group = 1, .counts = {0, 15, 0, 260}, .marked = true, .pooled = true};
  b.check<4>();
  step c{.dim = 8, .heads = 3, .group = 1, .tokens = 2100, .sequences = {{2100, 1}}, .counts = {512, 2000, 1300}, .pooled = true};
  c.keep = 500;
  c.check<4>(2);
  c.keep = 9000;  // more than is kept in shared memory
  c.spare = most_shared_scores;
  c.check<4>(2);
}

TEST_CASE("misuse is refused") {
  const rerank_output out;
  rerank_input in;
  CHECK_THROWS_AS(rerank({}, rsq_ip<4>{}, {}, {}, {}, {}, in, out), usage_error);  // no page dots
  const float dot = 0;
  in.page_dots = &dot;
  CHECK_THROWS_AS(rerank({}, rsq_ip<4>{}, {.bits = 8}, {}, {}, {}, in, out), usage_error);
  CHECK_THROWS_AS(rerank({}, rsq_ip<4>{}, {.subspace = 3}, {}, {}, {}, in, out), usage_error);
  rerank_output wide;
  wide.group = 129;
  CHECK_THROWS_AS(rerank({}, rsq_ip<4>{}, {}, {}, {}, {}, in, wide), usage_error);
}
