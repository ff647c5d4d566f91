// Images of pages in a file: what was written is read, in as few calls as there are runs of ids; a file that was shortened or that may not
// grow is an error, and never zeros.

#include <support/limited_files.hpp>

#include <kvx/backend/host.hpp>
#include <kvx/layout/host/far_images.hpp>
#include <kvx/layout/page_runs.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <system_error>
#include <vector>

#include <unistd.h>

namespace {

using namespace kvx;
using test::limited_files;

int calls = 0, opened = -1;
// A signal comes first, then a part of the bytes.
ssize_t read_some(int file, void* bytes, std::size_t n, off_t at) {
  if (++calls % 3 == 1) return errno = EINTR, -1;
  return ::pread(file, bytes, std::max<std::size_t>(1, n / 2), at);
}
ssize_t write_some(int file, const void* bytes, std::size_t n, off_t at) {
  if (++calls % 3 == 1) return errno = EINTR, -1;
  return ::pwrite(file, bytes, std::max<std::size_t>(1, n / 2), at);
}
ssize_t counted_read(int file, void* bytes, std::size_t n, off_t at) { return ++calls, ::pread(file, bytes, n, at); }
ssize_t counted_write(int file, const void* bytes, std::size_t n, off_t at) { return ++calls, opened = file, ::pwrite(file, bytes, n, at); }

constexpr std::int64_t pages = 40, layers = 2, image = 3 * 4 * 10;  // elements: (H, P, row)

/// Rows of one layer, and their images.
struct world {
  std::vector<std::int32_t> memory = std::vector<std::int32_t>(pages * image);
  row_view<std::int32_t> rows = rows_at<std::int32_t>(memory.data(), {4, 6, 4}, 3, image, 4 * 10);
  far_images<std::int32_t> images;

  explicit world(far_place place, bool by_pages = true) : images(place, pages, image * 4, layers, by_pages, call_site::here()) {}
  void fill(int seed) { std::iota(memory.begin(), memory.end(), seed); }
};

std::vector<std::int32_t> some_pages(std::mt19937& random) {
  std::vector<std::int32_t> ids;
  for (std::int32_t p = 0; p < pages; ++p) {
    if (random() % 3 > 0) ids.push_back(p);
  }
  return ids;
}

}  // namespace

TEST_CASE("runs: together they are the ids, and none could be longer") {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::int32_t> ids = some_pages(random), again;
    if (round % 2 == 1) std::shuffle(ids.begin(), ids.end(), random);
    const std::int64_t most = 1 + static_cast<std::int64_t>(random() % 5);
    std::int32_t last = -7;
    std::int64_t length = most;
    for_each_run(ids, most, [&](std::span<const std::int32_t> run) {
      REQUIRE(!run.empty());
      REQUIRE(std::ssize(run) <= most);
      REQUIRE((length == most || run.front() != last + 1));
      for (std::size_t i = 1; i < run.size(); ++i) REQUIRE(run[i] == run[i - 1] + 1);
      last = run.back(), length = std::ssize(run);
      again.insert(again.end(), run.begin(), run.end());
    });
    CHECK(again == ids);
  }
}

TEST_CASE("images: each page of each layer comes back as it was, by both orders") {
  for (const far_calls by : {far_calls{}, far_calls{read_some, write_some}}) {
    for (const bool mapped : {false, true}) {
      world w({.mapped = mapped, .calls = by});
      std::mt19937 random(2);
      const std::vector<std::int32_t> ids = some_pages(random);
      std::vector<std::int32_t> first, second, packed(2 * image, 77);
      w.fill(1000000), second = w.memory;
      w.images.write(w.rows, 1, ids, call_site::here());
      w.fill(1), first = w.memory;
      w.images.write(w.rows, 0, ids, call_site::here());
      w.images.write_by_page(packed.data(), 0, 11, 2, call_site::here());
      std::vector<std::int32_t> unit(image, 0);
      REQUIRE(w.images.file().read(w.images.by_page(0) + 12 * image * 4, unit.data(), image * 4) == 0);
      CHECK(unit == std::vector<std::int32_t>(image, 77));
      for (const auto& expected : {first, second}) {
        std::fill(w.memory.begin(), w.memory.end(), -1);
        w.images.read(w.rows, expected == first ? 0 : 1, ids, call_site::here());
        for (std::int32_t p = 0; p < pages; ++p) {
          const bool is_far = std::binary_search(ids.begin(), ids.end(), p);
          for (std::int64_t i = p * image; i < (p + 1) * image; ++i)
            REQUIRE(w.memory[static_cast<std::size_t>(i)] == (is_far ? expected[static_cast<std::size_t>(i)] : -1));
        }
      }
    }
  }
}

TEST_CASE("images: pages that follow each other are one call") {
  world w({.calls = {counted_read, counted_write}});
  const std::vector<std::int32_t> ids = {3, 4, 5, 9, 11, 12};
  calls = 0;
  w.images.write(w.rows, 1, ids, call_site::here());
  w.images.read(w.rows, 1, ids, call_site::here());
  CHECK(calls == 6);
}

TEST_CASE("images: a file that was shortened says so, also after what is written next") {
  world w({.calls = {counted_read, counted_write}});
  const std::vector<std::int32_t> early = {0, 1}, late = {20, 21};
  w.fill(5);
  w.images.write(w.rows, 0, early, call_site::here());
  w.images.write(w.rows, 0, late, call_site::here());
  REQUIRE(::ftruncate(opened, image * 4 + 8) == 0);
  CHECK_THROWS_AS(w.images.read(w.rows, 0, late, call_site::here()), std::system_error);
  CHECK_THROWS_AS(w.images.read(w.rows, 0, early, call_site::here()), std::system_error);
  CHECK_THROWS_AS(w.images.write(w.rows, 1, late, call_site::here()), std::system_error);  // page 1 would be zeros
  CHECK_THROWS_AS(w.images.read(w.rows, 0, early, call_site::here()), std::system_error);
  w.images.read(w.rows, 0, std::span(early).first(1), call_site::here());
  CHECK(w.memory[0] == 5);
}

TEST_CASE("images: a file that may not become longer is full, and no signal") {
  world w({});
  const std::vector<std::int32_t> early = {0, 1}, late = {20, 21};
  {
    const limited_files to(4096);
    w.images.write(w.rows, 0, early, call_site::here());
    CHECK_THROWS_AS(w.images.write(w.rows, 0, late, call_site::here()), capacity_error);
    CHECK_THROWS_AS(world({.mapped = true}), usage_error);
  }
  w.images.write(w.rows, 0, late, call_site::here());
}
