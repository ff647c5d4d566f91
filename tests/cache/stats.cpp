// What a cache says of itself: bytes that it will reserve, pages and bytes in use, tokens by zone.

#include <support/feed.hpp>

#include <kvx/kvx.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <vector>

namespace {

using namespace kvx;
using test::feed, test::tokens;

/// Counts bytes taken, and not given back.
class counting_resource final : public std::pmr::memory_resource {
 public:
  std::int64_t bytes = 0;

 private:
  void* do_allocate(std::size_t size, std::size_t alignment) override {
    bytes += static_cast<std::int64_t>(size);
    return std::pmr::new_delete_resource()->allocate(size, alignment);
  }
  void do_deallocate(void* p, std::size_t size, std::size_t alignment) override {
    bytes -= static_cast<std::int64_t>(size);
    std::pmr::new_delete_resource()->deallocate(p, size, alignment);
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }
};

constexpr page_shape shape{.tokens = 8, .key_dim = 6, .value_dim = 3};
constexpr zones cut{.sink = 3, .local = 5};

geometry five_layers() {
  return {.layers = 5,
          .kv_heads = 2,
          .query_heads = 4,
          .max_tokens = 200,
          .max_sequences = 3,
          .kinds = {layer_kind::dense(), layer_kind::retrieve(), layer_kind::window(9), layer_kind::retrieve(), layer_kind::window(9)},
          .max_step_tokens = 50,
          .rollback = 0};
}

constexpr std::int64_t all_pages = 25 + 3;               // ceil(200 / 8), and one partly filled page a sequence
constexpr std::int64_t window_pages = 3 * (2 + 2) + 7;   // what three windows of 9 touch, and a step of 50 tokens
constexpr std::int64_t block = 64;                       // the checksum's 8 bytes, on a multiple of 64

template <class Layout>
void bytes_are_taken(std::int64_t rows, std::int64_t columns) {
  using type = cache<host, spec<Layout, test::checksum_index>>;
  const cache_bytes said = type::bytes(five_layers());
  CHECK(said.rows == rows);
  CHECK(said.columns == columns);
  CHECK(said.total() == rows + columns + said.tables);
  counting_resource memory;
  {
    const type c({.threads = 1, .parallel = serial(), .memory = &memory}, {}, five_layers());
    CHECK(memory.bytes == rows + columns);
  }
  CHECK(memory.bytes == 0);
}

}  // namespace

TEST_CASE("bytes of a geometry are those that the cache takes") {
  // 8 slots x 2 heads x a row: K and V of floats take 8 + 4 elements, of halves 8 + 8; three layers keep all tokens.
  constexpr std::int64_t page = 8 * 2;
  bytes_are_taken<paged<float, shape, cut>>(page * 12 * 4 * (3 * all_pages + 2 * window_pages), 2 * all_pages * 2 * block);
  bytes_are_taken<paged<half, shape, cut>>(page * 16 * 2 * (3 * all_pages + 2 * window_pages), 2 * all_pages * 2 * block);
  constexpr std::int64_t slabs = 3 * 9;  // ceil(200 / 3) tokens each, whatever the layer sees
  bytes_are_taken<contiguous<float, shape, cut>>(page * 12 * 4 * 5 * slabs, 2 * slabs * 2 * block);
  bytes_are_taken<external<float, shape, cut>>(0, 2 * all_pages * 2 * block);
}

TEST_CASE("pages, bytes and tokens by zone follow every operation") {
  const host exec = test::one_thread();
  cache<host, spec<paged<half, shape, cut>, test::checksum_index>> c(exec, {}, five_layers());
  constexpr std::int64_t page_bytes = 8 * 2 * 16 * 2;
  struct expected {
    std::int64_t sequences, tokens, used, window_used, shared, sink, retrieval, recent;
  };
  const auto check = [&](const expected& e) {
    CAPTURE(e.tokens);
    const cache_stats s = c.stats();
    CHECK(s.sequences == e.sequences);
    CHECK(s.tokens == e.tokens);
    CHECK(s.pages_total == all_pages + window_pages);
    CHECK(s.pages_used == e.used + e.window_used);
    CHECK(s.pages_free == s.pages_total - s.pages_used);
    CHECK(s.pages_shared == e.shared);
    CHECK(s.sink_tokens == e.sink);
    CHECK(s.retrieval_tokens == e.retrieval);
    CHECK(s.recent_tokens == e.recent);
    CHECK(s.row_bytes == page_bytes * (3 * e.used + 2 * e.window_used));
    CHECK(s.column_bytes == 2 * e.used * 2 * block);
    CHECK(s.near_bytes() == s.row_bytes + s.column_bytes);
    CHECK(s.far_bytes == 0);
  };
  check({0, 0, 0, 0, 0, 0, 0, 0});
  const sequence a = c.open(exec);
  feed(c, exec, a, tokens(1, 2));
  check({1, 2, 1, 1, 0, 2, 0, 0});
  feed(c, exec, a, tokens(3, 10));  // 12 tokens: the edge would be at 0, and stays behind the sink
  check({1, 12, 2, 2, 0, 3, 0, 9});
  feed(c, exec, a, tokens(13, 1));  // 13: 5 recent ones, and the first page is whole
  check({1, 13, 2, 2, 0, 3, 5, 5});
  feed(c, exec, a, tokens(14, 16));  // 29: edge 24, and the window begins at 21, in page 2
  check({1, 29, 4, 2, 0, 3, 21, 5});
  const sequence b = c.fork(exec, a);
  check({2, 58, 4, 2, 6, 6, 42, 10});
  CHECK(c.stats().rows_copied == 0);
  feed(c, exec, b, tokens(30, 1));  // a copy of the last page: 5 rows of each of 5 layers
  check({2, 59, 5, 3, 4, 6, 42, 11});
  CHECK(c.stats().rows_copied == 25);
  c.truncate(exec, b, 24);  // the copy goes; edge 16
  check({2, 53, 4, 2, 4, 6, 34, 13});
  c.close(exec, a);
  check({1, 24, 3, 1, 0, 3, 13, 8});
  c.close(exec, b);
  check({0, 0, 0, 0, 0, 0, 0, 0});
}
