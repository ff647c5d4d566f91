// Dense attention reads no byte outside of its rows, queries and page table: each lies against an unreadable page.

#include "../support/dense_case.hpp"
#include "../support/guarded.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

/// Copies `from` to guarded memory.
template <class U>
U* place(const guarded& memory, const std::vector<U>& from) {
  return std::copy_n(from.data(), from.size(), reinterpret_cast<U*>(memory.data())) - from.size();
}

template <class E>
void check_guarded(int key_dim, int value_dim, std::int64_t length, std::int64_t queries, bool at_end) {
  const std::int64_t pages = length;  // of one token: every row may be the last
  std::vector<E> keys(static_cast<std::size_t>(pages * key_dim)), values(static_cast<std::size_t>(pages * value_dim));
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  for (E& x : keys) x = round_to<E>(normal(random));
  for (E& x : values) x = round_to<E>(normal(random));
  std::vector<std::int32_t> table(static_cast<std::size_t>(pages));
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>(i);
  const query_rows<E> q(queries, 3, key_dim, 4);

  const guarded key_memory(keys.size() * sizeof(E), at_end), value_memory(values.size() * sizeof(E), at_end);
  const guarded table_memory(table.size() * sizeof(std::int32_t), at_end), query_memory(q.data.size() * sizeof(E), at_end);
  const guarded out_memory(static_cast<std::size_t>(queries * 3 * value_dim) * sizeof(E), at_end);
  const row_view<const E> rows{
      {place(key_memory, keys), key_dim, 0, 0}, {place(value_memory, values), value_dim, 0, 0}, 1, 1, key_dim, value_dim};
  const attend_item item{place(table_memory, table), length, queries, 0};
  const host exec{.threads = 1};
  const auto bytes = static_cast<std::size_t>(attend_dense_scratch(exec, rows, {&item, 1}, 3));
  const guarded scratch(bytes, at_end);
  for (const instruction_set set : instruction_sets()) {
    auto* const out = reinterpret_cast<E*>(out_memory.data());
    host_dense::attend(simd::kernels_of(set), exec, rows, {&item, 1},
                       tensor_view<const E, 3>(place(query_memory, q.data), queries, 3, key_dim),
                       tensor_view<E, 3>(out, queries, 3, value_dim), {}, {}, std::span(scratch.data(), bytes), call_site::here());
    const auto inside = attend(rows, {&item, 1}, q, {}, set);
    CHECK(std::equal(inside.out.begin(), inside.out.end(), out));
  }
}

}  // namespace

TEST_CASE("rows, queries, outputs, tables and scratch end at an unreadable page") {
  for (const bool at_end : {true, false}) {
    for (int dim = 1; dim <= 70; ++dim) {
      check_guarded<bf16>(dim, 71 - dim, 9, 1, at_end);
      check_guarded<half>(dim, 71 - dim, 9, 8, at_end);
      if (dim % 3 == 0) check_guarded<float>(dim, 71 - dim, 10, 10, at_end);
    }
    for (const int dim : {127, 129, 575, 576}) {
      check_guarded<bf16>(dim, 577 - dim, 5, 1, at_end);
      check_guarded<half>(dim, 577 - dim, 9, 9, at_end);
      check_guarded<float>(dim, 577 - dim, 9, 9, at_end);
    }
  }
}
