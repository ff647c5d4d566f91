#pragma once
// Runs attend_dense on the device on a test's rows, and compares with the reference.

#include <kvx/attend/cuda/dense.cuh>
#include <kvx/backend/device.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "device/batch_on_device.cuh"
#include "device/device_array.cuh"
#include "support/dense_attention.hpp"
#include "support/dense_result.hpp"
#include "support/paged_rows.hpp"

namespace kvx::test {

/// What a call differs in that must not change its result, and faults.
///
/// most_queries, longest   the launch is planned for at least so much
/// tables                  other page tables
/// short_scratch, short_tickets   so much less than promised
struct dense_call_options {
  std::int64_t most_queries = 0;
  std::int64_t longest = 0;
  std::vector<std::vector<std::int32_t>> tables = {};
  std::size_t short_scratch = 0;
  std::size_t short_tickets = 0;
};

template <class E, class T>
dense_result<T> attend_on_device(const paged_rows<E>& rows, const std::vector<attend_item>& items, const query_rows<T>& q,
                                 const dense_options& o = {}, const dense_call_options& how = {}) {
  rows_on_device<E> there(rows);
  batch_on_device batch(there.tables(), items);
  batch.plan_for(std::max(how.most_queries, batch.view().most_queries), std::max(how.longest, batch.view().longest));
  for (std::size_t i = 0; i < how.tables.size(); ++i) there.replace_table(i, how.tables[i]);
  const row_view<const E> view = there.view();
  device_batch planned = batch.view();
  planned.tokens = q.n;
  const device_array<T> queries(q.data), out(static_cast<std::size_t>(q.n * q.heads * view.value_dim));
  const device_array<float> lse(static_cast<std::size_t>(q.n * q.heads));
  // Scratch full of NaN, exactly as large as promised: what is not written first must not be read.
  const device_array<std::byte> scratch(static_cast<std::size_t>(attend_dense_scratch(device{}, view, planned, q.heads)) -
                                        how.short_scratch);
  const device_array<unsigned> tickets(
      std::vector<unsigned>(static_cast<std::size_t>(attend_dense_tickets(device{}, view, planned, q.heads)) - how.short_tickets));
  for (int run = 0; run < 2; ++run) {  // the second finds the tickets that the first has left
    attend_dense<E, T>(device{}, view, planned, tensor_view<const T, 3>(queries.data(), q.n, q.heads, q.dim),
                       tensor_view<T, 3>(out.data(), q.n, q.heads, view.value_dim), tensor_view<float, 2>(lse.data(), q.n, q.heads), o,
                       {scratch.data(), scratch.size()}, {tickets.data(), tickets.size()});
    if (how.most_queries == 0) break;
  }
  for (const unsigned t : tickets.read()) CHECK(t == 0);
  return {out.read(), lse.read()};
}

/// attend_dense on the device against the reference.
///
/// exactness   as dense_result.hpp says; prompts (more than 16 query rows a KV head) round weights to the element of the rows: values of
///             size 1 to 5 get errors of 2^-9 (bf16) or 2^-12 (half) of their size each, so 2^-7 and 2^-10 altogether
template <class E, class T>
void check_device_dense(const paged_rows<E>& rows, const std::vector<attend_item>& items, const query_rows<T>& q,
                        const dense_options& o = {}) {
  const auto result = attend_on_device(rows, items, q, o);
  const dense_reference expected = dense_attention(rows.view(), items, q.view(), o);
  const std::int64_t group = q.heads / rows.view().heads, width = q.heads * rows.view().value_dim;
  for (const attend_item& item : items) {
    const bool rounds = item.queries * group > few_rows && !std::is_same_v<E, float>;
    const auto part = [&](const auto& all, std::int64_t n) {
      using V = std::decay_t<decltype(all)>;
      return V(all.begin() + item.first * n, all.begin() + (item.first + item.queries) * n);
    };
    check_close(dense_result<T>{part(result.out, width), part(result.lse, q.heads)},
                dense_reference{part(expected.out, width), part(expected.lse, q.heads)},
                !rounds                   ? 0
                : std::is_same_v<E, bf16> ? 0x1p-7
                                          : 0x1p-10);
  }
}

}  // namespace kvx::test
