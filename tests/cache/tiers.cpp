// A cache in tiers: columns follow the pages through steps, forks, truncations and copies, in every layout.

#include <kvx/kvx.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

using namespace kvx;

namespace {

constexpr page_shape shape{.tokens = 16, .key_dim = 24, .value_dim = 16};
constexpr zones cut{.sink = 4, .local = 16};
constexpr int heads = 2, group = 2;

template <class Layout>
using tiered = cache<host, spec<Layout, sign_buckets<key_sketch{.balance = 0}>, rsq_ip<4, tiers{.value_bits = 4, .tail = true}>>>;
using paged_cache = tiered<paged<bf16, shape, cut>>;
using contiguous_cache = tiered<contiguous<bf16, shape, cut>>;

const host exec{.threads = 1};

const geometry sizes{.layers = 2,
                     .kv_heads = heads,
                     .query_heads = heads * group,
                     .max_tokens = 2000,
                     .max_sequences = 4,
                     .kinds = {layer_kind::retrieve(), layer_kind::retrieve()}};

/// Rows and queries of a position, the same whenever they are asked for.
std::vector<float> numbers(std::int64_t position, int count, unsigned what) {
  std::mt19937 random(static_cast<unsigned>(position) * 7 + what);
  std::normal_distribution<float> normal;
  std::vector<float> x;
  for (int i = 0; i < count; ++i) x.push_back(normal(random));
  return x;
}

/// Appends positions [begin, end) and returns the output of the last one.
template <class Cache>
std::vector<float> feed(Cache& c, sequence s, std::int64_t begin, std::int64_t end, int piece) {
  std::vector<float> out;
  for (std::int64_t n = begin; n < end; n += piece) {
    const std::int64_t count = std::min<std::int64_t>(piece, end - n);
    step step = c.begin(exec, {{s, count}});
    for (int layer = 0; layer < 2; ++layer) {
      std::vector<float> k, v, q;
      for (std::int64_t t = n; t < n + count; ++t) {
        for (const float x : numbers(t, heads * shape.key_dim, 1)) k.push_back(x);
        for (const float x : numbers(t, heads * shape.value_dim, 2)) v.push_back(x);
        for (const float x : numbers(t, heads * group * shape.key_dim, 3)) q.push_back(x);
      }
      c.append(exec, step, layer, k.data(), v.data());
      out.assign(static_cast<std::size_t>(count * heads * group * shape.value_dim), 0);
      attend_options how{.keep = 8, .breadth = {.fraction = .2, .per_kept = 0}, .path = attend_options::route::retrieve};
      c.attend(exec, step, layer, q.data(), out.data(), how);
    }
    c.commit(exec, step);
  }
  return {out.end() - heads * group * shape.value_dim, out.end()};
}

}  // namespace

TEST_CASE_TEMPLATE("pieces, truncation and forks cannot be told from one straight text", Cache, paged_cache, contiguous_cache) {
  Cache straight(exec, {}, sizes), other(exec, {}, sizes);
  const sequence a = straight.open(exec);
  feed(straight, a, 0, 399, 1);
  const std::vector<float> expected = feed(straight, a, 399, 400, 1);

  const sequence b = other.open(exec);
  feed(other, b, 0, 230, 23);
  other.truncate(exec, b, 117);
  feed(other, b, 117, 300, 61);
  const sequence c = other.fork(exec, b, 150);
  feed(other, c, 150, 399, 30);
  CHECK(feed(other, c, 399, 400, 1) == expected);
  feed(other, b, 300, 399, 1);
  CHECK(feed(other, b, 399, 400, 1) == expected);

  const std::int64_t edge_page = edge(cut, 400, shape.tokens) / shape.tokens;
  for (int column = 0; column < tiered_column_count; ++column) {
    for (std::int64_t page = 0; page < edge_page; ++page) {
      const column_array from = straight.column(1, column), to = other.column(1, column);
      if (from.data == nullptr) continue;
      const std::int64_t bytes = tiered_columns({.bits = 4, .balance = 0}, 4, shape)[static_cast<std::size_t>(column)].block_bytes;
      for (int h = 0; h < heads; ++h) {
        CHECK(std::memcmp(from.at(straight.pages(1, a)[static_cast<std::size_t>(page)], h),
                          to.at(other.pages(1, c)[static_cast<std::size_t>(page)], h), static_cast<std::size_t>(bytes)) == 0);
      }
    }
  }
}

TEST_CASE("columns are paid for where tiers are asked for, and only there") {
  using plain = spec<paged<bf16, shape, cut>, sign_buckets<>, rsq_ip<4>>;
  using with = spec<paged<bf16, shape, cut>, sign_buckets<>, rsq_ip<4, tiers{.value_bits = 2, .tail = true}>>;
  using tail = spec<paged<bf16, shape, cut>, sign_buckets<>, rsq_ip<4, tiers{.tail = true}>>;
  CHECK(plain::columns(shape).size() == sketch_column_count);
  const auto bytes = [](const auto& columns) {
    std::int64_t all = 0;
    for (const column& c : columns) all += c.block_bytes;
    return all;
  };
  CHECK(bytes(with::columns(shape)) - bytes(plain::columns(shape)) == 16 * 4 + 16 * 2 + 16 * 2);
  CHECK(bytes(tail::columns(shape)) - bytes(plain::columns(shape)) == 16 * 2);
}
