// An audit says what its definition says, and leaves out what cannot be judged.

#include <kvx/attend/host/audit.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

namespace {

using namespace kvx;

const host exec{.threads = 1};

/// Outputs and log-sum-exps of one call, at random.
template <class T>
struct call {
  std::int64_t n, heads, dim;
  std::vector<T> out;      // (N, Q, Dv)
  std::vector<float> lse;  // (N, Q)

  call(std::int64_t tokens, std::int64_t query_heads, std::int64_t components, std::mt19937& random)
      : n(tokens), heads(query_heads), dim(components) {
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < n * heads * dim; ++i) out.push_back(round_to<T>(normal(random)));
    for (std::int64_t i = 0; i < n * heads; ++i) lse.push_back(5 + normal(random));
  }
  tensor_view<const T, 3> rows() const { return tensor_view<const T, 3>(out.data(), n, heads, dim); }
  tensor_view<const float, 2> sums() const { return tensor_view<const float, 2>(lse.data(), n, heads); }
};

template <class T>
attention_audit audited(const call<T>& method, const call<T>& dense, attention_audit audit = {}) {
  audit_attention<T>(exec, method.rows(), method.sums(), dense.rows(), dense.sums(), audit);
  return audit;
}

}  // namespace

TEST_CASE_TEMPLATE("means and extremes over all pairs are those of the definition", T, float, half, bf16) {
  std::mt19937 random(3);
  for (const std::int64_t dim : {1, 7, 64, 576}) {
    const call<T> dense(5, 6, dim, random);
    call<T> method(5, 6, dim, random);
    for (std::size_t i = 0; i < method.lse.size(); ++i) method.lse[i] = dense.lse[i] - static_cast<float>(i % 4) / 2;

    double mass = 0, error = 0, least = 1, worst = 0;
    for (std::size_t pair = 0; pair < 30; ++pair) {
      double squares = 0, norm = 0;
      for (std::size_t d = 0; d < static_cast<std::size_t>(dim); ++d) {
        const std::size_t at = pair * static_cast<std::size_t>(dim) + d;
        squares += std::pow(static_cast<double>(to_float(method.out[at])) - static_cast<double>(to_float(dense.out[at])), 2);
        norm += std::pow(static_cast<double>(to_float(dense.out[at])), 2);
      }
      const double m = std::exp(static_cast<double>(method.lse[pair]) - static_cast<double>(dense.lse[pair]));
      const double e = std::sqrt(squares) / std::sqrt(norm);
      mass += m / 30;
      error += e / 30;
      least = std::min(least, m);
      worst = std::max(worst, e);
    }
    const attention_audit audit = audited(method, dense);
    CHECK(audit.tokens == 5);
    CHECK(audit.pairs == 30);
    CHECK(audit.unjudged == 0);
    CHECK(audit.mean_mass() == doctest::Approx(mass).epsilon(1e-12));
    CHECK(audit.mean_error() == doctest::Approx(error).epsilon(1e-12));
    CHECK(audit.least_mass == doctest::Approx(least).epsilon(1e-12));
    CHECK(audit.worst_error == doctest::Approx(worst).epsilon(1e-12));
  }
}

TEST_CASE("dense attention against itself: mass 1, error 0, to the bit; no call: the same") {
  std::mt19937 random(4);
  const call<float> dense(3, 4, 64, random);
  const attention_audit audit = audited(dense, dense);
  for (const attention_audit& a : {audit, attention_audit{}}) {
    CHECK(a.mean_mass() == 1);
    CHECK(a.least_mass == 1);
    CHECK(a.mean_error() == 0);
    CHECK(a.worst_error == 0);
  }
}

TEST_CASE("two calls add up to one") {
  std::mt19937 random(5);
  const call<float> dense(1, 4, 16, random), method(1, 4, 16, random);
  const attention_audit once = audited(method, dense), twice = audited(method, dense, once);
  CHECK(twice.tokens == 2);
  CHECK(twice.pairs == 8);
  CHECK(twice.mean_error() == doctest::Approx(once.mean_error()));
  CHECK(twice.worst_error == once.worst_error);
  CHECK(twice.least_mass == once.least_mass);
}

TEST_CASE("what is not finite, or cannot be put in relation, is counted and spoils nothing") {
  std::mt19937 random(6);
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const call<float> dense(1, 8, 4, random), method(1, 8, 4, random);
  call<float> bad = method, reference = dense;
  bad.out[0] = nan;                            // head 0
  bad.lse[1] = nan;
  bad.out[2 * 4] = inf;
  reference.lse[3] = -inf;                     // dense attention saw nothing
  reference.out[4 * 4] = nan;
  std::fill_n(&reference.out[5 * 4], 4, 0.0f);
  std::fill_n(&reference.out[6 * 4], 4, 0.0f);
  std::fill_n(&bad.out[6 * 4], 4, 0.0f);       // both zero: no error
  const attention_audit audit = audited(bad, reference);
  CHECK(audit.unjudged == 6);
  CHECK(audit.pairs == 2);
  CHECK(std::isfinite(audit.mean_mass()));
  const double error = audited(method, dense).worst_error;
  CHECK(audit.mean_error() <= error / 2);
  CHECK(audit.mean_error() > 0);
}

TEST_CASE("shapes that do not fit are refused, and nothing is counted") {
  std::mt19937 random(7);
  const call<float> dense(2, 4, 16, random), narrow(2, 4, 15, random), few(1, 4, 16, random), heads(2, 3, 16, random);
  attention_audit audit;
  for (const call<float>* method : {&narrow, &few, &heads}) {
    CHECK_THROWS_AS(audit_attention<float>(exec, method->rows(), method->sums(), dense.rows(), dense.sums(), audit), usage_error);
  }
  CHECK_THROWS_AS(audit_attention<float>(exec, dense.rows(), few.sums(), dense.rows(), dense.sums(), audit), usage_error);
  CHECK_THROWS_AS(audit_attention<float>(exec, dense.rows(), dense.sums(), dense.rows(), tensor_view<const float, 2>(nullptr, 2, 4), audit),
                  usage_error);
  CHECK(audit == attention_audit{});
}
