// Prompts on the device equal the definition of dense attention, in any chunks; groups of more heads than a product has rows are prompts
 // too.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/dense_on_device.cuh"

namespace {

using namespace kvx;
using namespace kvx::test;

/// A prompt of each sequence's last `queries` tokens.
template <class E, class T>
void check_prompt(const paged_shape& s, int group, std::int64_t queries, const dense_options& o = {}) {
  const paged_rows<E> rows(s);
  std::vector<attend_item> batch;
  std::int64_t n = 0;
  for (std::size_t i = 0; i < s.lengths.size(); ++i) {
    batch.push_back(rows.item(i, std::min(queries, s.lengths[i]), n));
    n += batch.back().queries;
  }
  check_device_dense(rows, batch, query_rows<T>(n, s.heads * group, s.key_dim, 7), o);
}

}  // namespace

TEST_CASE("head dims, elements, alignments; dims that no block of 64 rows holds") {
  for (const int d : {1, 8, 46, 64, 80, 112, 128, 192, 256}) {
    CAPTURE(d);
    check_prompt<bf16, bf16>({.key_dim = d, .value_dim = d, .lengths = {90}, .gap = d % 3}, 2, 30);
    check_prompt<kvx::half, kvx::half>({.key_dim = d, .value_dim = 260 - d, .lengths = {70}, .offset = 1, .gap = 1}, 3, 20);
  }
  for (const int d : {5, 72, 128}) {
    check_prompt<float, float>({.key_dim = d, .value_dim = d, .lengths = {70}}, 2, 33);
    check_prompt<bf16, float>({.key_dim = d, .value_dim = 136 - d, .lengths = {70}}, 2, 33);
    check_prompt<float, kvx::half>({.key_dim = d, .value_dim = d, .lengths = {70}, .gap = 1}, 1, 33);
  }
  check_prompt<bf16, bf16>({.key_dim = 192, .value_dim = 128, .lengths = {80}}, 2, 40);
  check_prompt<bf16, bf16>({.key_dim = 576, .value_dim = 512, .lengths = {40}}, 2, 20);
  check_prompt<bf16, float>({.key_dim = 64, .value_dim = 256, .lengths = {40}}, 2, 20);
  check_prompt<float, float>({.key_dim = 64, .value_dim = 200, .lengths = {40}}, 2, 20);
}

TEST_CASE("groups and numbers of queries around a tile of rows") {
  for (const int group : {1, 2, 3, 5, 7, 16, 64}) {
    for (const std::int64_t rows : {17, 63, 64, 65, 129}) {
      CAPTURE(group);
      CAPTURE(rows);
      check_prompt<bf16, float>({.heads = 2, .page_tokens = 8, .key_dim = 16, .value_dim = 24, .lengths = {140, 40}}, group,
                                std::max<std::int64_t>(1, rows / group));
    }
  }
}

TEST_CASE("every length around a tile of keys, and prompts whose keys are split") {
  for (std::int64_t n = 17; n <= 70; n += 1 + n % 3) {
    CAPTURE(n);
    check_prompt<kvx::half, kvx::half>({.page_tokens = 4, .key_dim = 8, .value_dim = 8, .lengths = {n}}, 1, n);
  }
  for (const std::int64_t n : {511, 513, 1100, 1600}) check_prompt<bf16, bf16>({.key_dim = 8, .value_dim = 8, .lengths = {n, 90}}, 2, 40);
}

TEST_CASE("windows, sinks, soft caps") {
  for (const std::int64_t window : {1, 31, 32, 33, 100, 600}) {
    for (const std::int64_t sink : {0, 3, 70}) {
      CAPTURE(window);
      CAPTURE(sink);
      check_prompt<bf16, float>({.heads = 2, .page_tokens = 8, .key_dim = 16, .value_dim = 24, .lengths = {230, 60}}, 2, 75,
                                {.window = window, .sink = sink});
    }
  }
  check_prompt<float, float>({.key_dim = 20, .value_dim = 12, .lengths = {120}}, 2, 60, {.scale = -.3f, .soft_cap = 3});
  check_prompt<float, float>({.key_dim = 20, .value_dim = 12, .lengths = {700}}, 2, 60, {.soft_cap = 3, .window = 600, .sink = 2});
}

TEST_CASE("a prompt in any chunks equals the prompt at once") {
  constexpr std::int64_t length = 200;
  const paged_rows<float> rows({.heads = 2, .page_tokens = 32, .key_dim = 40, .value_dim = 24, .lengths = {length}});
  const query_rows<float> q(length, 6, 40, 4);
  for (const dense_options& o : {dense_options{}, dense_options{.window = 50, .sink = 3}}) {
    const attend_item all = rows.item(0, length, 0);
    const dense_reference whole = dense_attention(rows.view(), {&all, 1}, q.view(), o);
    for (const std::int64_t chunk : {5, 64, 77, 200}) {
      CAPTURE(chunk);
      dense_result<float> joined;
      for (std::int64_t first = 0; first < length; first += chunk) {
        const std::int64_t n = std::min(chunk, length - first);
        attend_item item = all;
        item.length = first + n;
        item.queries = n;
        const auto part = attend_on_device(rows, {item}, q.rows(first, n), o);
        joined.out.insert(joined.out.end(), part.out.begin(), part.out.end());
        joined.lse.insert(joined.lse.end(), part.lse.begin(), part.lse.end());
      }
      check_close(joined, whole);
    }
  }
}

TEST_CASE("query rows and outputs of any stride; no lse") {
  const paged_rows<kvx::half> rows({.heads = 2, .key_dim = 10, .value_dim = 6, .lengths = {60}});
  const attend_item item = rows.item(0, 60, 0);
  const query_rows<float> q(60, 4, 10, 8);
  const auto expected = attend_on_device(rows, {item}, q);
  // Components outermost: the innermost stride is 240.
  std::vector<float> turned(q.data.size());
  for (std::size_t row = 0; row < 240; ++row) {
    for (std::size_t d = 0; d < 10; ++d) turned[d * 240 + row] = q.data[row * 10 + d];
  }
  const test::rows_on_device<kvx::half> there(rows);
  const batch_on_device batch(there.tables(), {item});
  const device_array<float> queries(turned), out(60 * 4 * 6);
  tensor_view<const float, 3> from(queries.data(), 60, 4, 10);
  from.strides[0] = 4, from.strides[1] = 1, from.strides[2] = 240;
  tensor_view<float, 3> to(out.data(), 60, 4, 6);
  to.strides[0] = 4, to.strides[1] = 1, to.strides[2] = 240;
  const device_array<std::byte> scratch(static_cast<std::size_t>(attend_dense_scratch(device{}, there.view(), batch.view(), 4)));
  const device_array<unsigned> tickets(
      std::vector<unsigned>(static_cast<std::size_t>(attend_dense_tickets(device{}, there.view(), batch.view(), 4))));
  attend_dense<kvx::half, float>(device{}, there.view(), batch.view(), from, to, {}, {}, {scratch.data(), scratch.size()},
                                 {tickets.data(), tickets.size()});
  const auto result = out.read();
  for (std::size_t row = 0; row < 240; ++row) {
    for (std::size_t d = 0; d < 6; ++d) REQUIRE(result[d * 240 + row] == expected.out[row * 6 + d]);
  }
}
