// Logits from key codes equal their definition to the last bit, under every instruction set, for every shape of code.

#include "../support/code_logits.hpp"
#include "../support/dense_case.hpp"
#include "../support/random_codes.hpp"
#include "../support/thread_pool.hpp"

#include <kvx/index/host/sign_buckets.hpp>
#include <kvx/rerank/host/rsq_ip.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

/// Queries of a group; `rotated` is independent of `plain` here.
struct queries {
  std::vector<float> plain, rotated;
  std::int64_t heads, dim;

  queries(std::int64_t group, std::int64_t components, unsigned seed) : heads(group), dim(components) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < group * components; ++i) {
      plain.push_back(normal(random));
      rotated.push_back(normal(random));
    }
  }
  group_queries view(float scale = 0) const {
    return {tensor_view<const float, 2>(plain.data(), heads, dim), tensor_view<const float, 2>(rotated.data(), heads, dim), scale};
  }
};

std::vector<std::int32_t> every(std::int32_t step, std::int64_t tokens) {
  std::vector<std::int32_t> ids;
  for (std::int32_t t = 0; t < tokens; t += step) ids.push_back(t);
  return ids;
}

/// Equal bits; NaN equals NaN.
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (is_nan(a[i]) != is_nan(b[i]) || (!is_nan(a[i]) && std::memcmp(&a[i], &b[i], sizeof(float)) != 0)) return false;
  }
  return true;
}

template <int Bits>
std::vector<float> logits_of(const key_sketch& s, const head_view<float>& from, const group_queries& q, std::span<const std::int32_t> ids,
                             instruction_set set, const host& exec = {.threads = 1}) {
  const std::int64_t G = q.rotated.extents[0], C = static_cast<std::int64_t>(ids.size());
  std::vector<std::byte> scratch(static_cast<std::size_t>(rerank_scratch(exec, rsq_ip<Bits>{}, from.rows.key_dim, G)), std::byte{0xff});
  std::vector<float> logits(static_cast<std::size_t>(G * C), 12345);
  host_rsq::rerank<Bits>({simd::rerank_kernels_of(set), simd::scan_kernels_of(set)}, exec, s, from, q, ids,
                         tensor_view<float, 2>(logits.data(), G, C), scratch);
  return logits;
}

template <int Bits>
void check(key_sketch s, int dim, int page_tokens, int group, std::int32_t step = 3, std::int64_t tokens = 150) {
  s.bits = Bits;
  const random_codes codes(s, dim, page_tokens, 2, tokens, static_cast<unsigned>(dim));
  const queries q(group, dim, 7);
  const auto ids = every(step, tokens);
  const auto expected = code_logits<Bits>(s, codes.head(1), q.view(), ids);
  for (const instruction_set set : instruction_sets()) {
    CAPTURE(name_of(set));
    CHECK(same_bits(logits_of<Bits>(s, codes.head(1), q.view(), ids, set), expected));
  }
}

constexpr auto one_weight = key_sketch::weighting::key;

}  // namespace

TEST_CASE("every head dim, with 4 bits and each width of a subspace") {
  for (int d = 1; d <= 576; d += d < 140 ? 1 : 29) {
    CAPTURE(d);
    for (const int m : {4, 8, 16}) {
      CAPTURE(m);
      check<4>({.subspace = m}, d, 64, 2, 40);
    }
    check<4>({.subspace = 8, .weights = one_weight}, d, 64, 2, 40);
  }
  check<4>({}, 576, 64, 4);
}

TEST_CASE("2 and 8 bits, one weight a key") {
  for (const int d : {1, 5, 8, 20, 64, 72, 80, 96, 100, 128, 130, 192, 256, 257, 576}) {
    CAPTURE(d);
    for (const int m : {4, 8, 16}) {
      CAPTURE(m);
      check<2>({.subspace = m}, d, 64, 3, 17);
      check<8>({.subspace = m}, d, 64, 3, 17);
    }
    check<2>({.weights = one_weight}, d, 32, 4, 17);
    check<8>({.weights = one_weight}, d, 32, 4, 17);
  }
}

TEST_CASE("groups 1 to 16 and 64") {
  for (int group = 1; group <= 17; ++group) {
    CAPTURE(group);
    check<4>({}, 72, 64, group == 17 ? 64 : group);
    check<4>({.weights = one_weight}, 40, 64, group == 17 ? 64 : group);
    check<8>({.centre = false}, 24, 64, group == 17 ? 64 : group);
  }
}

TEST_CASE("every page size, with and without a page mean; candidates sparse and dense") {
  for (int page = 1; page <= 512; page *= 2) {
    CAPTURE(page);
    for (const std::int32_t step : {1, 7, 65}) {
      check<4>({}, 80, page, 3, step, 600);
      check<4>({.centre = false}, 80, page, 3, step, 600);
    }
  }
}

TEST_CASE("every number of candidates around blocks and tasks") {
  for (const std::int64_t n : {0, 1, 2, 31, 32, 33, 63, 64, 65, 1023, 1024, 1025, 2500}) {
    CAPTURE(n);
    check<4>({.subspace = 4}, 16, 64, 2, 1, n == 0 ? 1 : n);
  }
  const random_codes codes({}, 16, 64, 1, 64, 1);
  const queries q(2, 16, 7);
  CHECK(logits_of<4>({}, codes.head(0), q.view(), {}, simd_level().used).empty());
}

TEST_CASE("weights of every size: the sums of large ones leave what a double holds exactly") {
  key_sketch s;
  const int dim = 576;
  const random_codes codes(s, dim, 64, 1, 256, 3);
  std::mt19937 random(9);
  auto* const w = reinterpret_cast<half*>(codes.head(0).columns[column_weights].data);
  for (int i = 0; i < 256 * 72; ++i) w[i].bits = static_cast<std::uint16_t>(random() % 0x7c00);  // any finite half that is not negative
  const queries q(4, dim, 7);
  const auto ids = every(1, 256);
  const auto expected = code_logits<4>(s, codes.head(0), q.view(), ids);
  for (const instruction_set set : instruction_sets()) CHECK(same_bits(logits_of<4>(s, codes.head(0), q.view(), ids, set), expected));
}

TEST_CASE("a key without weight, a query that is zero, infinite or NaN") {
  key_sketch s;
  const random_codes codes(s, 64, 64, 1, 64, 3);
  auto* const w = reinterpret_cast<half*>(codes.head(0).columns[column_weights].data);
  for (int i = 0; i < 8; ++i) w[5 * 8 + i] = no_weight;
  queries q(5, 64, 7);
  for (int d = 0; d < 64; ++d) q.rotated[static_cast<std::size_t>(d)] = 0;
  for (int d = 0; d < 64; ++d) q.rotated[static_cast<std::size_t>(64 + d)] *= 1e-35f;
  q.rotated[2 * 64 + 9] = infinity;
  q.rotated[3 * 64 + 9] = quiet_nan;
  const auto ids = every(1, 64);
  const auto expected = code_logits<4>(s, codes.head(0), q.view(), ids);
  for (const instruction_set set : instruction_sets()) {
    const auto logits = logits_of<4>(s, codes.head(0), q.view(), ids, set);
    CHECK(same_bits(logits, expected));
    for (std::size_t t = 0; t < 64; ++t) {
      CHECK(is_nan(logits[t]) == (t == 5));
      CHECK((t == 5 || logits[t] == logits[t / 64 * 64]));  // the page's term alone
      CHECK(is_nan(logits[2 * 64 + t]));
      CHECK(is_nan(logits[3 * 64 + t]));
      CHECK(is_nan(logits[4 * 64 + t]) == (t == 5));
    }
  }
}

TEST_CASE("whole numbers lose little: against levels, weights and queries in double") {
  for (const int d : {64, 128, 576}) {
    key_sketch s{.centre = false};
    const random_codes codes(s, d, 64, 1, 256, 3);
    const queries q(1, d, 7);
    const auto ids = every(1, 256);
    const auto logits = logits_of<4>(s, codes.head(0), q.view(1), ids, simd_level().used);
    double error = 0, energy = 0;
    for (int t = 0; t < 256; ++t) {
      const page_code<false> code = code_of(codes.head(0).columns, codes.head(0).pages[t / 64], 0);
      double exact = 0;
      for (int j = 0; j < d; ++j) {
        const int cell = cell_of(code.magnitudes + std::int64_t{t % 64} * 3 * plane_bytes(d), s, d, j);
        const double level = static_cast<double>(codebook_for<3>(codebook_width(s, d, j)).levels[static_cast<std::size_t>(cell)]);
        const double w = static_cast<double>(to_float(code.weights[(t % 64) * (d / 8) + weight_of(s, j)]));
        exact += (is_nonnegative(code.signs, 64, t % 64, j) ? w : -w) * level * static_cast<double>(q.rotated[static_cast<std::size_t>(j)]);
      }
      error += (static_cast<double>(logits[static_cast<std::size_t>(t)]) - exact) *
               (static_cast<double>(logits[static_cast<std::size_t>(t)]) - exact);
      energy += exact * exact;
    }
    CHECK(std::sqrt(error / energy) < .012);  // a query in whole numbers up to 127 alone loses .006 to .008
    CHECK(std::sqrt(error / energy) > .001);
  }
}

TEST_CASE("page dots that a search leaves give the bits of those that are computed anew") {
  for (const int group : {1, 3, 4, 7}) {
    const random_codes codes({}, 80, 32, 2, 300, 5);
    const queries q(group, 80, 8);
    const head_view<float> from = codes.head(1);
    const bucket_zone zone{{32, 80, 80}, from.columns, 1, from.pages, 40, 290};
    std::vector<float> dots(static_cast<std::size_t>((zone.last_page() - zone.first_page()) * group), 12345);
    std::vector<std::int32_t> ids(50);
    std::vector<std::byte> memory(static_cast<std::size_t>(search_bytes({}, {}, zone.page, group, 300)) + 64);
    void* start = memory.data();
    std::size_t space = memory.size();
    const std::span scratch(static_cast<std::byte*>(std::align(64, 1, start, space)), memory.size() - 64);
    REQUIRE(leaves_page_dots({}, {}));
    group_queries asked = q.view(.1f);
    search_buckets({.threads = 1}, {}, {}, zone, {asked.rotated, asked.plain, nullptr, asked.scale}, {}, 50, ids.data(), scratch,
                   dots.data());
    for (const instruction_set set : instruction_sets()) {
      const auto expected = logits_of<4>({}, from, asked, ids, set);
      group_queries with = asked;
      with.page_dots = dots.data();
      with.first_page = zone.first_page();
      CHECK(same_bits(logits_of<4>({}, from, with, ids, set), expected));
      auto others = dots;
      for (float& x : others) x += 1;
      with.page_dots = others.data();
      CHECK(!same_bits(logits_of<4>({}, from, with, ids, set), expected));
    }
  }
}

TEST_CASE("any number of threads gives the same bits") {
  const random_codes codes({}, 128, 64, 1, 9000, 3);
  const queries q(4, 128, 7);
  const auto ids = every(2, 9000);
  const auto one = logits_of<4>({}, codes.head(0), q.view(), ids, simd_level().used);
  for (const int threads : {2, 3, 7})
    CHECK(logits_of<4>({}, codes.head(0), q.view(), ids, simd_level().used, {.threads = threads, .parallel = std_threads()}) == one);
}

TEST_CASE("misuse is refused") {
  const random_codes codes({}, 16, 64, 1, 64, 3);
  const queries q(2, 16, 7), other(2, 15, 7);
  const std::vector<std::int32_t> ids = {1, 2, 3};
  std::vector<float> logits(6);
  std::vector<std::byte> scratch(static_cast<std::size_t>(rerank_scratch(host{}, rsq_ip<4>{}, 16, 2)));
  const auto call = [&](const key_sketch& s, const queries& asked, std::int64_t width, std::size_t bytes) {
    rerank(host{}, rsq_ip<4>{}, s, codes.head(0), asked.view(), ids, tensor_view<float, 2>(logits.data(), 2, width),
           std::span(scratch).first(bytes));
  };
  CHECK_NOTHROW(call({}, q, 3, scratch.size()));
  CHECK_THROWS_AS(call({.bits = 8}, q, 3, scratch.size()), usage_error);
  CHECK_THROWS_AS(call({.subspace = 5}, q, 3, scratch.size()), usage_error);
  CHECK_THROWS_AS(call({}, other, 3, scratch.size()), usage_error);
  CHECK_THROWS_AS(call({}, q, 2, scratch.size()), usage_error);
  CHECK_THROWS_AS(call({}, q, 3, scratch.size() - 1), usage_error);
}
