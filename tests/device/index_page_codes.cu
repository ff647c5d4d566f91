// The codes of the means of semantic pages on the device are those of the host, byte for byte.

#include <kvx/index/cuda/page_codes.cuh>

#include <kvx/index/host/dci_tree.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "device_array.cuh"
#include "support/paged_rows.hpp"

using namespace kvx;
using test::device_array;

namespace {

/// Columns of one head after the other, every byte 0xff.
struct column_memory {
  std::vector<std::byte> bytes;
  column_array array;

  column_memory(std::int64_t pitch, std::int64_t pages, int heads)
      : bytes(static_cast<std::size_t>(pitch * pages * heads), std::byte{0xff}), array{bytes.data(), pitch, heads, pitch * pages} {}
  column_array moved(const device_array<std::byte>& to) const { return {to.data(), array.pitch, array.heads, array.head_stride}; }
};

/// same        all keys of the first block are the same
void compare(const dci_shape& shape, int page_tokens, int dim, std::int64_t blocks, std::int64_t sink, bool same) {
  CAPTURE(dim);
  constexpr int heads = 2;
  const std::int64_t tokens = blocks * shape.block, pages = tokens / page_tokens, each = shape.block / page_tokens;
  test::paged_rows<float> rows({.heads = heads, .page_tokens = page_tokens, .key_dim = dim, .value_dim = 8, .lengths = {tokens}});
  for (int h = 0; h < heads; ++h) {
    for (std::int64_t t = 0; t < shape.block && same; ++t) std::fill_n(rows.key(0, t, h), dim, .25f);
    for (std::int64_t t = shape.block; t < 2 * shape.block; ++t) rows.key(0, t, h)[0] = h == 0 ? infinity : 1.0f;  // pages without members
  }
  const std::int32_t* const table = rows.tables()[0].data();
  const auto columns = dci_columns(shape, {page_tokens, dim, 8});
  column_memory members(columns[column_members].pitch(), pages, heads), means(columns[column_member_means].pitch(), pages, heads);
  column_memory codes(columns[column_mean_codes].pitch(), pages, heads);
  const device_array<std::byte> there(codes.bytes);
  for (int h = 0; h < heads; ++h) {
    const dci_head<float> of{rows.view(), members.array, means.array, {}, table, table, h, sink, false, {}, codes.array};
    std::vector<std::byte> scratch(static_cast<std::size_t>(index_blocks_bytes(shape, page_tokens, dim, tokens)) + 64);
    void* start = scratch.data();
    std::size_t space = scratch.size();
    auto* const aligned = static_cast<std::byte*>(std::align(64, 1, start, space));
    index_blocks<float>(host{.threads = 1}, shape, of, 0, blocks, {}, {aligned, space});
  }
  const device_array<std::byte> there_members(members.bytes), there_means(means.bytes);
  const device_array<std::int32_t> ids(std::vector<std::int32_t>(table, table + pages));
  std::vector<block_to_index> list;
  for (std::int64_t b = blocks; b-- > 0;) {
    const std::int64_t first = b > 0 ? b * each - 3 : 0;
    list.push_back({.pages = ids.data() + first, .first_page = first, .block = b, .first_block = ids.data()});
  }
  const device_array<block_to_index> there_blocks(list);
  const test::test_stream stream;
  code_means(device{.stream = stream.get()}, shape, {page_tokens, dim, 8}, members.moved(there_members), means.moved(there_means),
             codes.moved(there), there_blocks.data(), blocks);
  stream.wait();
  CHECK(there.read() == codes.bytes);
}

}  // namespace

TEST_CASE("keys of any size, blocks of several groups, pages without members, sinks") {
  for (const int dim : {3, 24, 128, 200}) compare({.block = 64}, 4, dim, 3, 8, false);
  compare({.block = 64}, 2, 40, 3, 0, false);
  compare({.block = 256}, 16, 64, 2, 32, false);
}
TEST_CASE("a first block whose means are all the same") { compare({.block = 32}, 2, 20, 3, 0, true); }

TEST_CASE("what has no codes is refused") {
  const device exec{};
  CHECK_THROWS_AS(code_means(exec, {.block = 64}, {8, 16, 8}, {}, {}, {}, nullptr, 0), usage_error);
  CHECK_THROWS_AS(code_means(exec, {.block = 64, .rank = dci_shape::ranking::mean_key}, {4, 16, 8}, {}, {}, {}, nullptr, 0), usage_error);
  CHECK_THROWS_AS(code_means(exec, {.block = 64}, {4, 577, 8}, {}, {}, {}, nullptr, 0), usage_error);
}
