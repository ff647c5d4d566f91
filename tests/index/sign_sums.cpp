// The scan by sign sums gives the bytes of its plain reference: every head dimension, group and page, every split, every instruction set.

#include <support/bucket_columns.hpp>
#include <support/instruction_sets.hpp>
#include <support/sign_buckets.hpp>

#include <kvx/index/host/sign_buckets.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

using namespace kvx;
using namespace kvx::test;
using of = bucket_scoring::query;

namespace {

const host exec;

struct prepared {
  memory_block memory;
  bucket_query query;
};

prepared prepare(const key_sketch& sketch, of rule, const bucket_zone& z, const bucket_queries& in) {
  prepared p{memory_block(lazy_pages(), sign_sum_bytes(z.page.key_dim, static_cast<int>(in.rotated.extents[0]))), {}};
  p.query = prepare_sign_sums(exec, sketch, rule, z, in, std::span(p.memory.data(), static_cast<std::size_t>(p.memory.size())));
  return p;
}

/// Scores of the zone's tokens, scanned in pieces of `piece` pages.
scores scan(const bucket_query& q, const bucket_zone& z, std::int64_t piece) {
  std::vector<std::uint8_t> all;
  for (std::int64_t i = z.first_page(); i < z.last_page(); i += piece) {
    const std::int64_t last = std::min(i + piece, z.last_page());
    std::vector<std::uint8_t> part(static_cast<std::size_t>((last - i) * z.page.tokens), 77);
    scan_buckets(exec, q, z, i, last, part);
    all.insert(all.end(), part.begin(), part.end());
  }
  const std::int64_t start = z.first_page() * z.page.tokens;
  for (std::size_t t = 0; t < all.size(); ++t) {
    const std::int64_t token = start + static_cast<std::int64_t>(t);
    if (token < z.begin || token >= z.end) CHECK(all[t] == no_score);
  }
  return z.end > z.begin ? scores(all.begin() + (z.begin - start), all.begin() + (z.end - start)) : scores();
}

void check_equal(const key_sketch& sketch, of rule, const bucket_zone& z, const bucket_queries& in) {
  const scores expected = plain_sign_sums(sketch, rule, z, in).all();
  const prepared p = prepare(sketch, rule, z, in);
  for (const std::int64_t piece : {std::int64_t{1} << 40, std::int64_t{3}}) {
    CHECK(scan(p.query, z, piece) == expected);
  }
}

}  // namespace

TEST_CASE("scores equal the reference: head dimensions") {
  for (const int dim : {1, 3, 7, 8, 9, 46, 64, 72, 80, 96, 100, 128, 192, 255, 256, 257, 264, 300, 576}) {
    CAPTURE(dim);
    const key_sketch sketch;
    bucket_columns columns(sketch, {64, dim, dim}, 2, 300, static_cast<std::uint32_t>(dim));
    columns.fill_at_random(1);
    const group_queries q = random_queries(3, dim, sketch.seed, columns.random());
    check_equal(sketch, of::head_aware, columns.zone(1, 5, 297), q.view(.1f));
    check_equal(sketch, of::mean_query, columns.zone(1, 64, 128), q.view(.1f));
  }
}

TEST_CASE("scores equal the reference: groups") {
  for (const int group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 64}) {
    CAPTURE(group);
    const key_sketch sketch;
    bucket_columns columns(sketch, {64, 40, 40}, 1, 200, static_cast<std::uint32_t>(group));
    columns.fill_at_random(0);
    const group_queries q = random_queries(group, 40, sketch.seed, columns.random());
    check_equal(sketch, of::head_aware, columns.zone(0, 4, 200), q.view(.1f));
  }
}

TEST_CASE("scores equal the reference: pages") {
  for (const int tokens : {1, 2, 4, 8, 16, 32, 64, 128, 256, 1024}) {
    CAPTURE(tokens);
    const key_sketch sketch;
    bucket_columns columns(sketch, {tokens, 24, 24}, 3, 1500, static_cast<std::uint32_t>(tokens));
    columns.fill_at_random(2);
    const group_queries q = random_queries(4, 24, sketch.seed, columns.random());
    check_equal(sketch, of::head_aware, columns.zone(2, 4, tokens < 16 ? 300 : 1499), q.view(.2f));
    check_equal(sketch, of::head_aware, columns.zone(2, 77, 78), q.view(.2f));
  }
}

TEST_CASE("scores equal the reference: sketches without norms or centre, of other subspaces") {
  for (const bool norms : {false, true}) {
    for (const bool centre : {false, true}) {
      for (const int subspace : {4, 8, 16}) {
        key_sketch sketch;
        sketch.norms = norms;
        sketch.centre = centre;
        sketch.subspace = subspace;
        bucket_columns columns(sketch, {64, 64, 64}, 1, 300, 9);
        columns.fill_at_random(0);
        const group_queries q = random_queries(4, 64, sketch.seed, columns.random());
        check_equal(sketch, of::head_aware, columns.zone(0, 0, 300), q.view(.125f));
        check_equal(sketch, of::mean_query, columns.zone(0, 0, 300), q.view(.125f));
      }
    }
  }
}

TEST_CASE("a longer zone than the sample, and norms far apart") {
  const key_sketch sketch;
  bucket_columns columns(sketch, {64, 16, 16}, 1, 9000, 3);
  columns.fill_at_random(0);
  for (std::int64_t i = 100; i < 140; ++i) columns.block(column_norms, 0, i)[i % 64] = std::byte{255};
  const group_queries q = random_queries(4, 16, sketch.seed, columns.random());
  check_equal(sketch, of::head_aware, columns.zone(0, 4, 9000), q.view(.25f));
}

TEST_CASE("values that are no numbers: the same bytes as the reference, and no key without a norm is ever found") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const key_sketch sketch;
  bucket_columns columns(sketch, {64, 48, 48}, 1, 400, 4);
  columns.fill_at_random(0);
  for (int t = 0; t < 64; ++t) columns.block(column_norms, 0, 2)[t] = std::byte{0};
  reinterpret_cast<bf16*>(columns.block(column_means, 0, 3))[7] = round_to<bf16>(nan);
  reinterpret_cast<bf16*>(columns.block(column_means, 0, 4))[7] = round_to<bf16>(inf);
  const bucket_zone z = columns.zone(0, 4, 400);
  const group_queries good = random_queries(4, 48, sketch.seed, columns.random());
  for (const float bad : {nan, inf, -inf, 3e38f, 1e-40f, 0.0f}) {
    for (const int heads : {1, 4}) {
      CAPTURE(bad);
      group_queries q = good;
      for (int g = 0; g < heads; ++g) {
        q.rotated[static_cast<std::size_t>(48 * g + 5)] = bad;
        q.plain[static_cast<std::size_t>(48 * g + 6)] = bad;
        q.lse[static_cast<std::size_t>(g)] = bad;
      }
      for (const of rule : {of::head_aware, of::mean_query}) {
        check_equal(sketch, rule, z, q.view(.1f));
        const scores bytes = scan(prepare(sketch, rule, z, q.view(.1f)).query, z, 100);
        for (std::int64_t t = 128; t < 192; ++t) CHECK(bytes[static_cast<std::size_t>(t - 4)] == no_score);
      }
    }
  }
  SUBCASE("the zero query") {
    group_queries q = good;
    for (float& x : q.rotated) x = 0;
    check_equal(sketch, of::head_aware, z, q.view(.1f));
    for (float& x : q.plain) x = 0;
    check_equal(sketch, of::head_aware, z, q.view(.1f));
  }
  SUBCASE("no key has a norm") {
    for (std::int64_t i = 0; i < 7; ++i) std::fill_n(columns.block(column_norms, 0, i), 64, std::byte{0});
    check_equal(sketch, of::head_aware, z, good.view(.1f));
  }
  SUBCASE("no tokens") {
    const bucket_zone empty = columns.zone(0, 70, 70);
    CHECK(scan(prepare(sketch, of::head_aware, empty, good.view(.1f)).query, empty, 10).empty());
  }
}

TEST_CASE("every instruction set gives the bytes of the baseline") {
  std::mt19937 random(5);
  const auto bytes = [&](std::size_t n, unsigned below) {
    std::vector<std::uint8_t> x(n);
    for (auto& v : x) v = static_cast<std::uint8_t>(random() % below);
    return x;
  };
  const simd::scan_table& plain = simd::scan_kernels_of(instruction_set::baseline);
  for (const auto set : instruction_sets()) {
    CAPTURE(name_of(set));
    const simd::scan_table& fast = simd::scan_kernels_of(set);
    for (const int planes : {1, 2, 16, 31, 32, 33, 34, 71, 72}) {
      for (const int heads : {1, 2, 3, 4, 5, 8, 17}) {
        const auto size = static_cast<std::size_t>(planes);
        const auto signs = bytes(size * 128, 256), norms = bytes(128, 256);
        const auto tables =
            bytes(size * 32 * static_cast<std::size_t>(heads), planes > 32 ? 64 : 256 / (2 * static_cast<unsigned>(planes)));
        std::vector<std::int16_t> words(static_cast<std::size_t>(3 * heads));
        for (auto& w : words) w = static_cast<std::int16_t>(static_cast<int>(random() % 65536) - 32768);
        for (int g = 0; g < heads; ++g) words[static_cast<std::size_t>(g)] = static_cast<std::int16_t>(random() % 24577);
        const simd::sign_scan s{tables.data(), words.data(), words.data() + heads, heads, planes, 200, -9000, 700};
        const simd::scan_page page{signs.data(), heads % 2 != 0 ? norms.data() : nullptr, 128, 128, nullptr};
        scores a(128), b(128);
        plain.sign_scores(s, page, words.data() + 2 * heads, a.data());
        fast.sign_scores(s, page, words.data() + 2 * heads, b.data());
        CHECK(a == b);
      }
    }
    for (const int dim : {1, 5, 15, 16, 17, 128, 576}) {
      std::normal_distribution<float> normal;
      std::vector<float> q(5 * 576);
      std::vector<bf16> mean(static_cast<std::size_t>(dim));
      for (int g = 0; g < 5; ++g) {
        for (int d = 0; d < dim; ++d) {
          const float x = normal(random);
          q[static_cast<std::size_t>(576 * g + d)] = __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, x) & ~0xffu);
        }
      }
      for (auto& x : mean) x = round_to<bf16>(100 * normal(random));
      float a[5], b[5];
      plain.page_dots(q.data(), 576, 5, mean.data(), dim, a);
      fast.page_dots(q.data(), 576, 5, mean.data(), dim, b);
      for (int g = 0; g < 5; ++g) CHECK(a[g] == b[g]);
    }
  }
}

TEST_CASE("misuse names the argument") {
  const key_sketch sketch;
  bucket_columns columns(sketch, {64, 32, 32}, 1, 200, 1);
  columns.fill_at_random(0);
  group_queries q = random_queries(2, 32, sketch.seed, columns.random());
  const bucket_zone z = columns.zone(0, 0, 200);
  std::vector<std::byte> small(10);
  CHECK_THROWS_AS(prepare_sign_sums(exec, sketch, of::head_aware, z, q.view(1), small), usage_error);
  CHECK_THROWS_AS(prepare(sketch, of::head_aware, z, q.view(0)), usage_error);
  CHECK_THROWS_AS(prepare(sketch, of::head_aware, z, q.view(std::numeric_limits<float>::quiet_NaN())), usage_error);
  const prepared p = prepare(sketch, of::head_aware, z, q.view(1));
  std::vector<std::uint8_t> bytes(64);
  CHECK_THROWS_AS(scan_buckets(exec, p.query, z, 0, 2, bytes), usage_error);
  CHECK_THROWS_AS(scan_buckets(exec, p.query, z, 0, 5, bytes), usage_error);
  CHECK_THROWS_AS(scan_buckets(exec, p.query, z, 2, 1, bytes), usage_error);
  q.dim = 16;
  CHECK_THROWS_AS(prepare(sketch, of::head_aware, z, q.view(1)), usage_error);
}
