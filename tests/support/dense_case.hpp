#pragma once
// Runs attend_dense on a test's rows, by every instruction set of the machine, and compares with the reference.

#include "dense_attention.hpp"
#include "paged_rows.hpp"

#include <kvx/attend/host/dense.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace kvx::test {

/// The instruction sets that this machine can run.
inline std::vector<instruction_set> instruction_sets() {
  std::vector<instruction_set> sets;
  for (const auto s : {instruction_set::baseline, instruction_set::avx2, instruction_set::avx512}) {
    if (s <= simd_level().detected) sets.push_back(s);
  }
  return sets;
}

/// Random queries, or the outputs that a call left.
template <class T>
struct query_rows {
  std::int64_t n, heads, dim;
  std::vector<T> data;

  query_rows(std::int64_t count, std::int64_t query_heads, std::int64_t components, unsigned seed)
      : n(count), heads(query_heads), dim(components), data(static_cast<std::size_t>(count * query_heads * components)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (T& x : data) x = round_to<T>(normal(random));
  }
  tensor_view<const T, 3> view() const { return tensor_view<const T, 3>(data.data(), n, heads, dim); }
  /// Rows [first, first + count) alone.
  query_rows rows(std::int64_t first, std::int64_t count) const {
    query_rows part(0, heads, dim, 0);
    part.n = count;
    part.data.assign(data.begin() + first * heads * dim, data.begin() + (first + count) * heads * dim);
    return part;
  }
};

template <class T>
struct dense_result {
  std::vector<T> out;      // (N, Q, Dv)
  std::vector<float> lse;  // (N, Q)
  friend bool operator==(const dense_result&, const dense_result&) = default;
};

template <class E, class T>
dense_result<T> attend(const row_view<const E>& rows, std::span<const attend_item> batch, const query_rows<T>& q,
                       const dense_options& o = {}, instruction_set set = simd_level().used, const host& exec = {.threads = 1}) {
  dense_result<T> r{std::vector<T>(static_cast<std::size_t>(q.n * q.heads * rows.value_dim)),
                    std::vector<float>(static_cast<std::size_t>(q.n * q.heads))};
  // Scratch full of NaN, exactly as large as promised: what is not written first must not be read.
  const std::int64_t bytes = attend_dense_scratch(exec, rows, batch, static_cast<int>(q.heads));
  const std::vector<std::byte> poison(static_cast<std::size_t>(bytes), std::byte{0xff});
  std::vector<std::byte> scratch = poison;
  host_dense::attend(simd::kernels_of(set), exec, rows, batch, q.view(), tensor_view<T, 3>(r.out.data(), q.n, q.heads, rows.value_dim),
                     tensor_view<float, 2>(r.lse.data(), q.n, q.heads), o, scratch, call_site::here());
  return r;
}

/// Whether a result equals the reference.
///
/// exactness   scores of some units in nats, values of size 1 to 5: 2e-5, and the rounding of T; NaN where the reference has NaN
template <class T>
void check_close(const dense_result<T>& result, const dense_reference& expected) {
  const double unit = std::is_same_v<T, float> ? 1e-6 : std::is_same_v<T, half> ? 0x1p-11 : 0x1p-8;
  double worst = 0;
  for (std::size_t i = 0; i < result.out.size(); ++i) {
    const auto x = static_cast<double>(to_float(result.out[i]));
    const double error = std::abs(x - expected.out[i]) / (2e-5 + unit * std::abs(expected.out[i]));
    worst = std::max(worst, std::isnan(expected.out[i]) ? (std::isnan(x) ? 0 : 1e9) : std::isnan(error) ? 1e9 : error);
  }
  CHECK(worst <= 1);
  double worst_lse = 0;
  for (std::size_t i = 0; i < result.lse.size(); ++i) {
    const auto x = static_cast<double>(result.lse[i]);
    if (std::isinf(expected.lse[i]) || std::isnan(expected.lse[i])) {
      worst_lse = std::max(worst_lse, x == expected.lse[i] || (std::isnan(x) && std::isnan(expected.lse[i])) ? 0 : 1e9);
    } else {
      worst_lse = std::max(worst_lse, std::isnan(x) ? 1e9 : std::abs(x - expected.lse[i]) / (2e-5 + 1e-6 * std::abs(expected.lse[i])));
    }
  }
  CHECK(worst_lse <= 1);
}

/// attend_dense by every instruction set against the reference.
template <class E, class T>
void check_dense(const row_view<const E>& rows, std::span<const attend_item> batch, const query_rows<T>& q, const dense_options& o = {}) {
  const dense_reference expected = dense_attention(rows, batch, q.view(), o);
  for (const instruction_set set : instruction_sets()) {
    CAPTURE(name_of(set));
    check_close(attend(rows, batch, q, o, set), expected);
  }
}

}  // namespace kvx::test
