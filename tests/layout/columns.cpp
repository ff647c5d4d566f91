// Columns: blocks of all heads and pages lie apart, those of a head side by side; copies take the pages that they name, of every head.

#include <kvx/backend/host.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/layout/host/rows.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

using namespace kvx;

namespace {

constexpr std::int64_t pages = 7;
constexpr int heads = 3;

struct filled {
  std::int64_t pitch = column{.block_bytes = 70}.pitch();
  std::vector<std::byte> memory = std::vector<std::byte>(static_cast<std::size_t>(pitch * pages * heads));
  column_array blocks{memory.data(), pitch, heads, pages* pitch};

  filled() {
    for (std::int64_t p = 0; p < pages; ++p) {
      for (int h = 0; h < heads; ++h) std::fill_n(blocks.at(p, h), pitch, name(p, h));
    }
  }
  static std::byte name(std::int64_t page, int head) { return static_cast<std::byte>(page * heads + head + 1); }
};

}  // namespace

TEST_CASE("every block has its place, and the next page of a head follows") {
  const filled f;
  CHECK(f.pitch == 128);
  std::set<std::ptrdiff_t> places;
  for (std::int64_t p = 0; p < pages; ++p) {
    for (int h = 0; h < heads; ++h) {
      const std::ptrdiff_t place = f.blocks.at(p, h) - f.memory.data();
      CHECK(place % 64 == 0);
      CHECK(place + f.pitch <= static_cast<std::ptrdiff_t>(f.memory.size()));
      places.insert(place / f.pitch);
      if (p > 0) CHECK(f.blocks.at(p, h) - f.blocks.at(p - 1, h) == f.pitch);
      CHECK(std::all_of(f.blocks.at(p, h), f.blocks.at(p, h) + f.pitch, [&](std::byte b) { return b == filled::name(p, h); }));
    }
  }
  CHECK(places.size() == pages * heads);
}

TEST_CASE("a copy of pages takes these, of every head, and touches no other") {
  filled f;
  copy_blocks(host{}, f.blocks, 1, 4, 2);
  for (std::int64_t p = 0; p < pages; ++p) {
    for (int h = 0; h < heads; ++h) {
      const std::byte expected = filled::name(p == 4 || p == 5 ? p - 3 : p, h);
      CHECK(std::all_of(f.blocks.at(p, h), f.blocks.at(p, h) + f.pitch, [&](std::byte b) { return b == expected; }));
    }
  }
}
