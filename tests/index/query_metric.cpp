// The metric of queries is their second moment, from rows or from energies; RoPE pairs share their mean; broken queries are left out.

#include <kvx/index/query_metric.hpp>

#include <kvx/core/math.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <random>
#include <vector>

using namespace kvx;

namespace {

constexpr int dim = 6;

std::vector<std::vector<float>> random_queries() {
  std::mt19937 random(3);
  std::vector<std::vector<float>> all;
  for (int i = 0; i < 9; ++i) {
    auto& q = all.emplace_back();
    for (int d = 0; d < dim; ++d) q.push_back(static_cast<float>(static_cast<int>(random() % 17) - 8));  // whole: every sum is exact
  }
  return all;
}

}  // namespace

TEST_CASE("the full moment and its diagonal") {
  query_moments full(dim, true), diagonal(dim, false);
  const auto queries = random_queries();
  for (const auto& q : queries) {
    full.add(q.data());
    diagonal.add(q.data());
  }
  for (const float broken : {quiet_nan, infinity}) {
    std::vector<float> q(dim, 1.0f);
    q[4] = broken;
    full.add(q.data());
    diagonal.add(q.data());
  }
  CHECK(full.count() == 9);
  std::vector<float> all(dim * dim), squares(dim), shared(dim);
  CHECK(full.write(all.data()).full);
  CHECK(!diagonal.write(squares.data()).full);
  diagonal.write(shared.data(), {rope_pairs::order::halves, 4});         // 0 with 2, 1 with 3; 4 and 5 alone
  for (std::size_t d = 0; d < dim; ++d) {
    for (std::size_t e = 0; e < dim; ++e) {
      double sum = 0;
      for (const auto& q : queries) sum += static_cast<double>(q[d]) * static_cast<double>(q[e]);
      CHECK(all[d * dim + e] == static_cast<float>(sum / 9));
    }
    CHECK(squares[d] == all[d * dim + d]);
    const std::size_t partner = d < 4 ? d ^ 2u : d;
    CHECK(shared[d] == doctest::Approx((squares[d] + squares[partner]) / 2));
  }
}

TEST_CASE("energies of positions say the same as their queries") {
  query_moments rows(dim, false), energies(dim, false);
  for (const auto& q : random_queries()) {
    rows.add(q.data());
    std::vector<bf16> e;
    for (const float x : q) e.push_back(round_to<bf16>(x * x));          // at most 64: exact
    energies.add_energies(e.data());
  }
  std::vector<bf16> broken(dim, round_to<bf16>(quiet_nan));
  energies.add_energies(broken.data());
  std::vector<float> a(dim), b(dim);
  rows.write(a.data());
  energies.write(b.data());
  CHECK(a == b);
}

TEST_CASE("no query, no metric") {
  const query_moments none(dim, false);
  float values[dim] = {};
  CHECK(none.write(values).values == nullptr);
  int read = 0;
  for (int p = 0; p < metric_tokens; ++p) read += metric_reads(p) ? 1 : 0;
  CHECK(read == 128);
}
