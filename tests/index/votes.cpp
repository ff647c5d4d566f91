// Votes equal a brute-force count, for both subspaces and every head dimension; bucket counts add up however they are taken.

#include <support/bucket_columns.hpp>
#include <support/instruction_sets.hpp>
#include <support/sign_buckets.hpp>

#include <kvx/index/host/sign_buckets.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

const host exec;

std::vector<std::uint32_t> counts_of(const bucket_zone& z) {
  std::vector<std::uint32_t> counts(static_cast<std::size_t>(bucket_count_entries(z.page.key_dim)));
  count_buckets(exec, z, z.first_page(), z.last_page(), counts.data());
  return counts;
}

scores votes(const key_sketch& sketch, const bucket_zone& z, const group_queries& q, std::int64_t window) {
  memory_block memory(lazy_pages(), vote_bytes(sketch, z.page.key_dim));
  const auto counts = counts_of(z);
  const bucket_query query = prepare_votes(exec, sketch, z.page.key_dim, q.view(1).rotated, counts.data(), window,
                                           std::span(memory.data(), static_cast<std::size_t>(memory.size())));
  std::vector<std::uint8_t> all(static_cast<std::size_t>((z.last_page() - z.first_page()) * z.page.tokens));
  scan_buckets(exec, query, z, z.first_page(), z.last_page(), all);
  const auto first = all.begin() + z.begin % z.page.tokens;
  return scores(first, first + (z.end - z.begin));
}

key_sketch faithful(int subspace) {
  key_sketch sketch;
  sketch.subspace = subspace;
  sketch.centre = sketch.norms = false;
  sketch.balance = 0;
  return sketch;
}

}  // namespace

TEST_CASE("votes equal a brute-force count") {
  for (const int subspace : {4, 8}) {
    for (const int dim : {1, 3, 4, 5, 8, 12, 46, 64, 80, 100, 128, 192, 256, 344, 576}) {
      CAPTURE(subspace);
      CAPTURE(dim);
      const key_sketch sketch = faithful(subspace);
      bucket_columns columns(sketch, {64, dim, dim}, 2, 300, static_cast<std::uint32_t>(dim));
      columns.fill_at_random(1);
      const group_queries q = random_queries(3, dim, sketch.seed, columns.random());
      const bucket_zone z = columns.zone(1, 5, 290);
      for (const std::int64_t window : {1, 40, 143, 285})
        CHECK(votes(sketch, z, q, window) == plain_votes(sketch, z, q.view(1).rotated, window));
    }
  }
}

TEST_CASE("votes equal a brute-force count: pages, and keys without a norm") {
  for (const int tokens : {1, 16, 64, 256}) {
    key_sketch sketch = faithful(8);
    sketch.norms = true;
    bucket_columns columns(sketch, {tokens, 40, 40}, 1, 400, 6);
    columns.fill_at_random(0);
    const group_queries q = random_queries(1, 40, sketch.seed, columns.random());
    const bucket_zone z = columns.zone(0, 3, 399);
    const scores found = votes(sketch, z, q, 100);
    CHECK(found == plain_votes(sketch, z, q.view(1).rotated, 100));
    CHECK(std::count(found.begin(), found.end(), no_score) > 0);
  }
}

TEST_CASE("equal buckets, zero queries and queries that are no numbers") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const key_sketch sketch = faithful(8);
  bucket_columns columns(sketch, {64, 32, 32}, 1, 200, 8);
  columns.fill_at_random(0);
  const bucket_zone z = columns.zone(0, 0, 200);
  for (const float value : {0.0f, 1.0f, -1.0f, nan, inf, 3e38f, 1e-40f}) {
    group_queries q = random_queries(2, 32, sketch.seed, columns.random());
    std::fill(q.rotated.begin(), q.rotated.begin() + 32, value);
    CHECK(votes(sketch, z, q, 60) == plain_votes(sketch, z, q.view(1).rotated, 60));
    std::fill(q.rotated.begin(), q.rotated.end(), value);
    CHECK(votes(sketch, z, q, 60) == plain_votes(sketch, z, q.view(1).rotated, 60));
  }
}

TEST_CASE("bucket counts add up over any pages, and are taken out again") {
  const key_sketch sketch = faithful(4);
  bucket_columns columns(sketch, {64, 44, 44}, 1, 500, 2);
  columns.fill_at_random(0);
  const bucket_zone z = columns.zone(0, 10, 490);
  const auto whole = counts_of(z);
  std::uint64_t sum = 0;
  for (const std::uint32_t n : whole) sum += n;
  CHECK(sum == 480u * 6);
  std::vector<std::uint32_t> pieces(whole.size());
  for (const std::int64_t i : {5, 0, 3, 7, 1, 6, 2, 4}) count_buckets(exec, z, i, i + 1, pieces.data());
  CHECK(pieces == whole);
  count_buckets(exec, z, 0, 8, pieces.data(), ~0u);
  CHECK(pieces == std::vector<std::uint32_t>(whole.size()));
}

TEST_CASE("every instruction set gives the votes of the baseline") {
  std::mt19937 random(5);
  for (const auto set : instruction_sets()) {
    for (const int planes : {1, 16, 17, 72}) {
      for (const int subspace : {4, 8}) {
        std::vector<std::uint8_t> signs(static_cast<std::size_t>(planes) * 64), weights(static_cast<std::size_t>(planes) * 256);
        std::vector<std::uint8_t> bits(static_cast<std::size_t>(planes) * 96), a(64), b(64);
        for (auto* x : {&signs, &bits}) std::generate(x->begin(), x->end(), [&] { return static_cast<std::uint8_t>(random()); });
        for (auto& x : weights) x = static_cast<std::uint8_t>(random() % 7);
        const simd::vote_scan s{weights.data(), bits.data(), subspace, planes, planes > 40 ? 2 : 0};
        simd::scan_kernels_of(instruction_set::baseline).vote_scores(s, {signs.data(), nullptr, 64, 64, nullptr}, a.data());
        simd::scan_kernels_of(set).vote_scores(s, {signs.data(), nullptr, 64, 64, nullptr}, b.data());
        CHECK(a == b);
      }
    }
  }
}

TEST_CASE("misuse names the argument") {
  const key_sketch sketch = faithful(8);
  const std::vector<float> q(32);
  const std::vector<std::uint32_t> counts(4 * 256);
  std::vector<std::byte> memory(static_cast<std::size_t>(vote_bytes(sketch, 32)));
  const tensor_view<const float, 2> view(q.data(), 1, 32);
  CHECK_THROWS_AS(prepare_votes(exec, sketch, 31, view, counts.data(), 1, memory), usage_error);
  CHECK_THROWS_AS(prepare_votes(exec, sketch, 577, view, counts.data(), 1, memory), usage_error);
  CHECK_THROWS_AS(prepare_votes(exec, faithful(16), 32, view, counts.data(), 1, memory), usage_error);
  CHECK_THROWS_AS(prepare_votes(exec, sketch, 32, view, counts.data(), 1, std::span(memory).first(8)), usage_error);
}
