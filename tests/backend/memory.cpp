// The default memory resource: large blocks are aligned mappings, and what they do not own is left alone.

#include <kvx/backend/memory.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

TEST_CASE("blocks of every size can be written to their last byte, and start on a cache line") {
  for (const std::int64_t bytes : {1, 64, 4096, (1 << 21) - 1, 1 << 21, (1 << 21) + 64, 5 << 20}) {
    CAPTURE(bytes);
    const kvx::memory_block block(kvx::lazy_pages(), bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(block.data()) % kvx::memory_alignment == 0);
    std::memset(block.data(), 0x5a, static_cast<std::size_t>(bytes));
    CHECK(block.data()[bytes - 1] == std::byte{0x5a});
  }
}

TEST_CASE("a moved block is freed once, an empty one never") {
  kvx::memory_block a(kvx::lazy_pages(), 3 << 20);
  std::byte* const data = a.data();
  kvx::memory_block b = std::move(a);
  CHECK(b.data() == data);
  CHECK(a.data() == nullptr);
  b = kvx::memory_block();
  CHECK(b.size() == 0);
  CHECK(kvx::memory_block(kvx::lazy_pages(), 0).data() == nullptr);
}

TEST_CASE("more than there can be throws") {
  CHECK_THROWS_AS(static_cast<void>(kvx::lazy_pages()->allocate(SIZE_MAX - 100, 64)), std::bad_alloc);
  CHECK_THROWS_AS(static_cast<void>(kvx::lazy_pages()->allocate(SIZE_MAX / 2 + 2, 64)), std::bad_alloc);
}

#if defined(__linux__)
TEST_CASE("freeing a block unmaps nothing beside it") {
  // Single pages are mapped before each block, so that blocks come to lie at every offset from a large page and next to a neighbour.
  constexpr std::size_t page = 4096;
  std::vector<void*> neighbours;
  for (int i = 0; i < 600; ++i) {
    void* const neighbour = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(neighbour != MAP_FAILED);
    std::memset(neighbour, i & 0x7f, page);
    neighbours.push_back(neighbour);
    const kvx::memory_block block(kvx::lazy_pages(), (1 << 21) + 64);
    block.data()[(1 << 21) + 63] = std::byte{1};
  }
  int lost = 0;
  for (void* neighbour : neighbours) {
    unsigned char there = 0;
    if (mincore(neighbour, page, &there) != 0) ++lost;
  }
  CHECK(lost == 0);
  if (lost > 0) return;
  for (std::size_t i = 0; i < neighbours.size(); ++i) {
    CHECK(*static_cast<unsigned char*>(neighbours[i]) == (i & 0x7f));
    munmap(neighbours[i], page);
  }
}
#endif
