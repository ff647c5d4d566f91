// Every (page, head, slot) of a layer has bytes of its own, in both layouts, and offsets beyond 32 bits reach them.

#include <kvx/backend/memory.hpp>
#include <kvx/core/element.hpp>
#include <kvx/layout/contiguous.hpp>
#include <kvx/layout/paged.hpp>
#include <kvx/layout/row_view.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

using namespace kvx;

template <class Layout>
void check_disjoint(std::int64_t pages, int heads) {
  using E = typename Layout::element_type;
  const auto bytes = static_cast<std::size_t>(row_bytes<E>(Layout::shape, pages, heads));
  std::vector<E> memory(bytes / sizeof(E));
  std::vector<int> users(memory.size());
  const row_view<E> rows = Layout::rows(memory.data(), pages, heads);
  const auto use = [&](const E* row, int dim) {
    CHECK((row - memory.data()) * static_cast<std::ptrdiff_t>(sizeof(E)) % 16 == 0);
    REQUIRE(row >= memory.data());
    REQUIRE(row + dim <= memory.data() + memory.size());
    for (int c = 0; c < dim; ++c) ++users[static_cast<std::size_t>(row - memory.data() + c)];
  };
  for (std::int64_t page = 0; page < pages; ++page) {
    for (int head = 0; head < heads; ++head) {
      for (int slot = 0; slot < Layout::shape.tokens; ++slot) {
        use(rows.key.at(page, head, slot), rows.key_dim);
        use(rows.value.at(page, head, slot), rows.value_dim);
      }
    }
  }
  CHECK(*std::max_element(users.begin(), users.end()) == 1);
}

template <class E, int P, int D, int Dv>
void check_both() {
  constexpr page_shape shape{.tokens = P, .key_dim = D, .value_dim = Dv};
  check_disjoint<paged<E, shape>>(5, 3);
  check_disjoint<contiguous<E, shape>>(5, 3);
}

}  // namespace

TEST_CASE_TEMPLATE("rows of a layer never overlap", E, float, half, bf16) {
  check_both<E, 1, 1, 1>();
  check_both<E, 4, 46, 7>();
  check_both<E, 16, 72, 136>();
  check_both<E, 2, 576, 512>();
}

TEST_CASE("pages of one sequence follow each other in a contiguous layout: a head's rows are one run") {
  constexpr page_shape shape{.tokens = 4, .key_dim = 5, .value_dim = 3};
  std::vector<float> memory(static_cast<std::size_t>(row_bytes<float>(shape, 6, 2)) / 4);
  const auto rows = contiguous<float, shape>::rows(memory.data(), 6, 2);
  for (std::int64_t t = 0; t < 24; ++t) CHECK(rows.key.at(t / 4, 1, t % 4) == rows.key.at(0, 1, 0) + t * rows.key.slot_stride);
}

TEST_CASE("offsets beyond 2^31 elements and 2^32 bytes: nothing is touched but the rows that are written") {
  constexpr page_shape shape{.tokens = 64, .key_dim = 128, .value_dim = 128};
  constexpr std::int64_t pages = 70000;  // x 4 heads x 16384 elements: 4.6e9 elements, 9 GB
  const memory_block memory(lazy_pages(), row_bytes<half>(shape, pages, 4));
  const auto check = [&](row_view<half> rows) {
    for (const std::int64_t page : {std::int64_t{0}, std::int64_t{32767}, std::int64_t{32768}, std::int64_t{65536}, pages - 1}) {
      half* const last = rows.value.at(page, 3, 63) + 127;
      const auto offset = reinterpret_cast<std::byte*>(last + 1) - memory.data();
      REQUIRE(offset > 0);
      REQUIRE(offset <= memory.size());
      last->bits = static_cast<std::uint16_t>(page % 60000 + 1);
    }
    for (const std::int64_t page : {std::int64_t{0}, std::int64_t{32767}, std::int64_t{32768}, std::int64_t{65536}, pages - 1})
      CHECK(rows.value.at(page, 3, 63)[127].bits == page % 60000 + 1);
    return reinterpret_cast<std::byte*>(rows.value.at(pages - 1, 3, 63) + 128) - memory.data();
  };
  CHECK(check(paged<half, shape>::rows(reinterpret_cast<half*>(memory.data()), pages, 4)) == memory.size());
  CHECK(check(contiguous<half, shape>::rows(reinterpret_cast<half*>(memory.data()), pages, 4)) == memory.size());
}
