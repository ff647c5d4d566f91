#pragma once
// Runs attend_dense on a test's rows, by every instruction set of the machine, and compares with the reference.

#include "dense_attention.hpp"
#include "dense_result.hpp"
#include "instruction_sets.hpp"
#include "paged_rows.hpp"

#include <kvx/attend/host/dense.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvx::test {

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
