// Sign sums prepared on the device give the scores of the plain reference: every head dimension, group, page and sketch.

#include <kvx/index/cuda/scan_buckets.cuh>
#include <kvx/index/cuda/sign_sums.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "device/bucket_case.cuh"
#include "support/sign_buckets.hpp"

using namespace kvx;
using namespace kvx::test;
using of = bucket_scoring::query;

namespace {

const device exec;

/// Prepares and scans; the scores of each unit's zone.
std::vector<scores> scan(bucket_case& c, int chunk = 0) {
  c.upload(chunk);
  const bucket_search& s = c.search();
  kvx::test::scan(exec, c);
  REQUIRE(cudaStreamSynchronize(exec.stream) == cudaSuccess);
  std::vector<scores> all;
  for (std::int64_t u = 0; u < c.units(); ++u) {
    const bucket_zone z = c.zone(u);
    const std::int64_t first = z.begin % z.page.tokens;
    all.push_back(c.read(s.scores_of(u) + first, std::max<std::int64_t>(z.end - z.begin, 0)));
  }
  return all;
}

void check_equal(bucket_case& c, int chunk = 0) {
  const std::vector<scores> found = scan(c, chunk);
  for (std::int64_t u = 0; u < c.units(); ++u) {
    CAPTURE(u);
    const scores expected = plain_sign_sums(c.shape().sketch, c.shape().by.of, c.zone(u), c.queries(u).view(c.scale)).all();
    CHECK(found[static_cast<std::size_t>(u)] == expected);
  }
}

bucket_search_shape shape(int tokens, int dim, int group, of rule = of::head_aware) {
  bucket_search_shape s;
  s.by.of = rule;
  s.page = {tokens, dim, dim};
  s.cut = {.sink = 5, .local = 9};
  s.heads = 2;
  s.group = group;
  return s;
}

}  // namespace

TEST_CASE("scores equal the reference: head dimensions") {
  for (const int dim : {1, 3, 7, 8, 9, 46, 64, 72, 80, 96, 112, 128, 192, 255, 256, 257, 264, 300, 576}) {
    CAPTURE(dim);
    bucket_case aware(shape(64, dim, 3), {{330, 1}}, static_cast<std::uint32_t>(dim));
    check_equal(aware);
    if (dim % 2 != 0) continue;
    bucket_case mean(shape(64, dim, 3, of::mean_query), {{200, 1}}, static_cast<std::uint32_t>(dim));
    check_equal(mean);
  }
}

TEST_CASE("scores equal the reference: groups") {
  for (const int group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 20, 64}) {
    CAPTURE(group);
    bucket_case narrow(shape(64, 40, group), {{150, 1}}, static_cast<std::uint32_t>(group));
    check_equal(narrow);
    if (group % 3 != 0 && group < 64) continue;
    bucket_case wide(shape(16, 264, group), {{70, 1}}, static_cast<std::uint32_t>(group));
    check_equal(wide);
  }
}

TEST_CASE("scores equal the reference: pages") {
  for (const int tokens : {1, 2, 4, 8, 16, 32, 64, 128, 256, 2048}) {
    CAPTURE(tokens);
    bucket_search_shape s = shape(tokens, 24, 4);
    s.heads = 1;
    bucket_case c(s, {{tokens < 16 ? 300 : tokens < 2048 ? 1400 : 4200, 1}}, static_cast<std::uint32_t>(tokens));
    check_equal(c, tokens == 2048 ? 512 : 0);
  }
}

TEST_CASE("scores equal the reference: sketches without norms or centre") {
  for (const bool norms : {false, true}) {
    for (const bool centre : {false, true}) {
      bucket_search_shape s = shape(64, 64, 4);
      s.sketch.norms = norms;
      s.sketch.centre = centre;
      s.heads = 1;
      bucket_case aware(s, {{300, 1}}, 9);
      check_equal(aware);
      s.by.of = of::mean_query;
      bucket_case mean(s, {{300, 1}}, 10);
      check_equal(mean);
    }
  }
}

TEST_CASE("a longer zone than the sample, and norms far apart") {
  bucket_search_shape s = shape(64, 16, 4);
  s.heads = 1;
  bucket_case c(s, {{9000, 1}}, 3);
  for (std::int64_t i = 100; i < 130; ++i) c.columns().block(column_norms, 0, i)[i % 64] = std::byte{255};
  check_equal(c);
}

TEST_CASE("values that are no numbers: the same bytes as the reference") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, inf, -inf, 3e38f, 1e-40f, 0.0f}) {
    for (const of rule : {of::head_aware, of::mean_query}) {
      for (const int heads : {1, 4}) {
        CAPTURE(bad);
        CAPTURE(heads);
        CAPTURE(static_cast<int>(rule));
        bucket_search_shape s = shape(64, 48, 4, rule);
        s.heads = 1;
        bucket_case c(s, {{400, 1}}, 4);
        for (int t = 0; t < 64; ++t) c.columns().block(column_norms, 0, 2)[t] = std::byte{0};
        reinterpret_cast<bf16*>(c.columns().block(column_means, 0, 3))[7] = round_to<bf16>(nan);
        reinterpret_cast<bf16*>(c.columns().block(column_means, 0, 4))[7] = round_to<bf16>(inf);
        for (int g = 0; g < heads; ++g) {
          c.queries(0).rotated[static_cast<std::size_t>(48 * g + 5)] = bad;
          c.queries(0).plain[static_cast<std::size_t>(48 * g + 6)] = bad;
          c.queries(0).lse[static_cast<std::size_t>(g)] = bad;
        }
        check_equal(c);
      }
    }
  }
}

TEST_CASE("zero queries, and keys that have no norm at all") {
  bucket_search_shape s = shape(64, 48, 2);
  bucket_case zero(s, {{200, 1}}, 5);
  for (std::int64_t u = 0; u < zero.units(); ++u) {
    std::fill(zero.queries(u).rotated.begin(), zero.queries(u).rotated.end(), 0.0f);
    std::fill(zero.queries(u).plain.begin(), zero.queries(u).plain.end(), -0.0f);
  }
  check_equal(zero);
  bucket_case none(s, {{200, 1}}, 6);
  for (std::int64_t h = 0; h < 2; ++h) {
    for (std::int64_t i = 0; i < 4; ++i) std::fill_n(none.columns().block(column_norms, h, i), 64, std::byte{0});
  }
  check_equal(none);
}

TEST_CASE("misuse names the argument") {
  bucket_search_shape s = shape(64, 32, 2);
  bucket_case c(s, {{200, 1}}, 1);
  c.upload();
  bucket_search search = c.search();
  device_queries q = c.device_view();
  q.scale = 0;
  CHECK_THROWS_AS(prepare_sign_sums(exec, search, c.on_device(), c.batch(), q), usage_error);
  q.scale = 1;
  search.group = 65;
  CHECK_THROWS_AS(prepare_sign_sums(exec, search, c.on_device(), c.batch(), q), usage_error);
  search.group = 2;
  search.page.tokens = 48;
  CHECK_THROWS_AS(scan_sign_sums(exec, search, c.on_device(), c.batch()), usage_error);
}
