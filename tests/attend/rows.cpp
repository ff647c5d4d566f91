// Attention over chosen rows equals its definition, whatever is chosen, in whatever pieces it is taken; all rows are dense attention.

#include "../support/chosen_rows.hpp"
#include "../support/dense_case.hpp"
#include "../support/paged_rows.hpp"
#include "../support/thread_pool.hpp"

#include <kvx/attend/host/rows.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

struct partial {
  std::vector<softmax_state> states;
  std::vector<float> sums;  // (G, Dv)

  partial(std::int64_t group, std::int64_t dim)
      : states(static_cast<std::size_t>(group)), sums(static_cast<std::size_t>(group * dim), quiet_nan) {}  // sums of nothing are not read
  friend bool operator==(const partial&, const partial&) = default;
};

template <class E, class T>
void take(partial& p, const row_view<const E>& rows, const std::int32_t* pages, std::int64_t head, const query_rows<T>& q,
          const row_set& set, const row_options& o = {}, instruction_set kernels = simd_level().used, const host& exec = {.threads = 1}) {
  const auto group = static_cast<std::int64_t>(p.states.size());
  std::vector<std::byte> scratch(static_cast<std::size_t>(attend_rows_scratch(exec, rows, group, set.size())), std::byte{0xff});
  host_rows::attend(simd::kernels_of(kernels), exec, rows, pages, head, tensor_view<const T, 2>(q.data.data(), group, rows.key_dim), set, o,
                    p.states, tensor_view<float, 2>(p.sums.data(), group, rows.value_dim), scratch);
}

/// Scores of some nats, values of size 1 to 5: 2e-5 in float, as for dense attention.
void check_close(const partial& p, const rows_reference& expected, std::int64_t dim) {
  double worst = 0;
  for (std::size_t g = 0; g < p.states.size(); ++g) {
    std::vector<float> out(static_cast<std::size_t>(dim));
    finish_rows(host{}, std::span(&p.states[g], 1), tensor_view<const float, 2>(p.sums.data() + g * static_cast<std::size_t>(dim), 1, dim),
                tensor_view<float, 2>(out.data(), 1, dim));
    for (std::size_t d = 0; d < out.size(); ++d) {
      const double x = expected.out[g * static_cast<std::size_t>(dim) + d];
      const double error = std::abs(static_cast<double>(out[d]) - x) / (2e-5 + 1e-6 * std::abs(x));
      worst = std::max(worst, std::isnan(error) ? 1e9 : error);
    }
    const double lse = static_cast<double>(p.states[g].lse());
    if (lse != expected.lse[g]) {
      const double error = std::abs(lse - expected.lse[g]) / (2e-5 + 1e-6 * std::abs(expected.lse[g]));
      worst = std::max(worst, std::isnan(error) ? 1e9 : error);
    }
  }
  CHECK(worst <= 1);
}

std::vector<std::int32_t> some_of(std::int64_t tokens, double share, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> ids;
  for (std::int64_t t = 0; t < tokens; ++t) {
    if (std::uniform_real_distribution<double>()(random) < share) ids.push_back(static_cast<std::int32_t>(t));
  }
  return ids;
}

template <class E, class T>
void check(const paged_shape& s, int group, const row_set& set, const row_options& o = {}) {
  paged_rows<E> rows(s);
  const query_rows<T> q(1, group, s.key_dim, 5);
  for (int head = 0; head < s.heads; ++head) {
    const tensor_view<const T, 2> queries(q.data.data(), group, s.key_dim);
    const auto expected = attend_chosen(rows.view(), rows.item(0, 1, 0).pages, head, queries, set, o);
    for (const instruction_set kernels : instruction_sets()) {
      CAPTURE(name_of(kernels));
      partial p(group, s.value_dim);
      take(p, rows.view(), rows.item(0, 1, 0).pages, head, q, set, o, kernels);
      check_close(p, expected, s.value_dim);
    }
  }
}

}  // namespace

TEST_CASE("head dims, elements, K and V of different width") {
  const auto ids = some_of(100, .3, 1);
  const std::vector<token_range> ranges = {{0, 4}, {90, 100}};
  for (const int d : {1, 2, 7, 8, 17, 31, 46, 64, 72, 80, 96, 112, 128, 136, 160, 192, 256, 575, 576}) {
    CAPTURE(d);
    check<bf16, float>({.key_dim = d, .value_dim = d, .lengths = {100}, .gap = d % 3}, 4, {ranges, ids});
    check<half, half>({.key_dim = d, .value_dim = 577 - d, .lengths = {100}, .offset = 1, .gap = 1}, 3, {ranges, ids});
  }
  check<float, bf16>({.key_dim = 192, .value_dim = 128, .lengths = {100}}, 2, {ranges, ids});
  check<bf16, bf16>({.key_dim = 576, .value_dim = 512, .lengths = {100}}, 16, {ranges, ids});
}

TEST_CASE("groups 1 to 16 and 64, several heads, every page size") {
  const auto ids = some_of(150, .5, 2);
  const std::vector<token_range> ranges = {{0, 4}, {140, 150}};
  for (int group = 1; group <= 17; ++group) {
    CAPTURE(group);
    const int page = 1 << group % 8;
    check<bf16, float>({.heads = 2, .page_tokens = page, .key_dim = 24, .value_dim = 20, .lengths = {150}}, group == 17 ? 64 : group,
                       {ranges, ids});
  }
}

TEST_CASE("sets: nothing, one range, ids alone, every size around a block and a piece") {
  const paged_shape s{.page_tokens = 64, .key_dim = 16, .value_dim = 12, .lengths = {1700}};
  check<float, float>(s, 2, {});
  const std::vector<token_range> empty = {{5, 5}, {9, 3}}, one = {{7, 8}};
  check<float, float>(s, 2, {empty, {}});
  check<float, float>(s, 2, {one, {}});
  std::vector<std::int32_t> all(1700);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
  for (const std::size_t n : {1u, 2u, 15u, 16u, 17u, 63u, 64u, 65u, 127u, 128u, 129u, 511u, 512u, 513u, 1024u, 1025u, 1600u}) {
    CAPTURE(n);
    check<float, float>(s, 2, {{}, std::span(all).subspan(13, n)});
    const std::vector<token_range> range = {{3, 3 + static_cast<std::int64_t>(n)}};
    check<float, float>(s, 2, {range, std::span(all).subspan(1650, 7)});
  }
}

TEST_CASE("scale and soft cap") {
  const auto ids = some_of(300, .5, 3);
  check<float, float>({.key_dim = 40, .value_dim = 40, .lengths = {300}}, 4, {{}, ids}, {.scale = .7f});
  check<float, float>({.key_dim = 40, .value_dim = 40, .lengths = {300}}, 4, {{}, ids}, {.scale = .7f, .soft_cap = 3});
}

TEST_CASE("rows that are not chosen may hold anything") {
  paged_rows<bf16> rows({.page_tokens = 16, .key_dim = 32, .value_dim = 32, .lengths = {200}});
  const query_rows<float> q(1, 4, 32, 5);
  const auto ids = some_of(200, .4, 4);
  partial before(4, 32), after(4, 32);
  take(before, rows.view(), rows.item(0, 1, 0).pages, 0, q, {{}, ids});
  for (std::int32_t t = 0; t < 200; ++t) {
    if (std::binary_search(ids.begin(), ids.end(), t)) continue;
    std::fill_n(rows.key(0, t, 0), 32, round_to<bf16>(quiet_nan));
    std::fill_n(rows.value(0, t, 0), 32, round_to<bf16>(infinity));
  }
  take(after, rows.view(), rows.item(0, 1, 0).pages, 0, q, {{}, ids});
  CHECK(before == after);
}

TEST_CASE("residents first, then the selection: one softmax over both, and over any split") {
  const paged_shape s{.page_tokens = 16, .key_dim = 32, .value_dim = 24, .lengths = {900}};
  const paged_rows<bf16> rows(s);
  const std::int32_t* const pages = rows.item(0, 1, 0).pages;
  const query_rows<float> q(1, 3, 32, 5);
  const std::vector<token_range> ranges = {{0, 4}, {700, 900}};
  std::vector<std::int32_t> ids = some_of(696, .3, 5);
  for (std::int32_t& t : ids) t += 4;
  const auto expected = attend_chosen(rows.view(), pages, 0, tensor_view<const float, 2>(q.data.data(), 3, 32), {ranges, ids}, {});
  partial once(3, 24);
  take(once, rows.view(), pages, 0, q, {ranges, ids});
  check_close(once, expected, 24);
  for (std::size_t cut = 0; cut <= ids.size(); cut += 20) {
    CAPTURE(cut);
    partial p(3, 24);
    take(p, rows.view(), pages, 0, q, {ranges, {}});
    take(p, rows.view(), pages, 0, q, {{}, std::span(ids).first(cut)});
    take(p, rows.view(), pages, 0, q, {{}, std::span(ids).subspan(cut)});
    check_close(p, expected, 24);
  }
}

TEST_CASE("all rows chosen: dense attention") {
  const paged_shape s{.heads = 2, .page_tokens = 64, .key_dim = 128, .value_dim = 128, .lengths = {1500}};
  const paged_rows<bf16> rows(s);
  const query_rows<float> q(1, 8, 128, 5);
  const std::vector<attend_item> batch = {rows.item(0, 1, 0)};
  const auto dense = attend(rows.view(), std::span(batch), q);
  const std::vector<token_range> residents = {{0, 4}, {1244, 1500}};
  std::vector<std::int32_t> ids;
  for (std::int32_t t = 4; t < 1244; ++t) ids.push_back(t);
  for (int head = 0; head < 2; ++head) {
    query_rows<float> mine(1, 4, 128, 0);
    std::copy_n(q.data.begin() + head * 4 * 128, 4 * 128, mine.data.begin());
    partial p(4, 128);
    take(p, rows.view(), batch[0].pages, head, mine, {residents, ids});
    rows_reference expected;
    expected.out.assign(dense.out.begin() + head * 4 * 128, dense.out.begin() + (head + 1) * 4 * 128);
    expected.lse.assign(dense.lse.begin() + head * 4, dense.lse.begin() + (head + 1) * 4);
    check_close(p, expected, 128);
  }
}

TEST_CASE("a NaN among the chosen keys shows, a -inf score is no row") {
  paged_rows<float> rows({.page_tokens = 16, .key_dim = 8, .value_dim = 8, .lengths = {40}});
  const query_rows<float> q(1, 1, 8, 5);
  const std::vector<std::int32_t> ids = {1, 2, 3};
  partial two(1, 8), masked(1, 8), spoiled(1, 8);
  take(two, rows.view(), rows.item(0, 1, 0).pages, 0, q, {{}, std::span(ids).subspan(1)});
  for (int d = 0; d < 8; ++d) rows.key(0, 1, 0)[d] = q.data[static_cast<std::size_t>(d)] > 0 ? -infinity : infinity;
  take(masked, rows.view(), rows.item(0, 1, 0).pages, 0, q, {{}, ids});
  CHECK(masked == two);
  rows.key(0, 1, 0)[3] = quiet_nan;
  take(spoiled, rows.view(), rows.item(0, 1, 0).pages, 0, q, {{}, ids});
  CHECK(is_nan(spoiled.states[0].lse()));
}

TEST_CASE("any number of threads gives the same bits") {
  const paged_rows<bf16> rows({.page_tokens = 64, .key_dim = 64, .value_dim = 64, .lengths = {5000}});
  const query_rows<float> q(1, 4, 64, 5);
  const auto ids = some_of(5000, .7, 6);
  partial one(4, 64);
  take(one, rows.view(), rows.item(0, 1, 0).pages, 0, q, {{}, ids});
  for (const int threads : {2, 3, 7}) {
    partial many(4, 64);
    take(many, rows.view(), rows.item(0, 1, 0).pages, 0, q, {{}, ids}, {}, simd_level().used,
         {.threads = threads, .parallel = std_threads()});
    CHECK(many == one);
  }
}

TEST_CASE("misuse is refused") {
  const paged_rows<float> rows({.key_dim = 8, .value_dim = 8, .lengths = {40}});
  std::vector<float> q(16), sums(16);
  std::vector<softmax_state> states(2);
  std::vector<std::byte> scratch(10000);
  const std::int32_t* const pages = rows.item(0, 1, 0).pages;
  const std::vector<token_range> ranges = {{0, 40}};
  const auto call = [&](std::int64_t head, std::int64_t dim, std::size_t heads, std::int64_t value_dim, std::size_t bytes) {
    attend_rows(host{}, rows.view(), pages, head, tensor_view<const float, 2>(q.data(), 2, dim), {ranges, {}}, {},
                std::span(states).first(heads), tensor_view<float, 2>(sums.data(), 2, value_dim), std::span(scratch).first(bytes));
  };
  const auto needed = static_cast<std::size_t>(attend_rows_scratch(host{}, rows.view(), 2, 40));
  CHECK_NOTHROW(call(0, 8, 2, 8, needed));
  CHECK_THROWS_AS(call(1, 8, 2, 8, needed), usage_error);
  CHECK_THROWS_AS(call(0, 7, 2, 8, needed), usage_error);
  CHECK_THROWS_AS(call(0, 8, 1, 8, needed), usage_error);
  CHECK_THROWS_AS(call(0, 8, 2, 7, needed), usage_error);
  CHECK_THROWS_AS(call(0, 8, 2, 8, needed - 1), usage_error);
}
