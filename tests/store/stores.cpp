// Every store: what was put is what is read, whole or in pieces; a reader keeps what it opened; keys are listed, erased, and not confused.

#include <support/limited_files.hpp>
#include <support/temporary_folder.hpp>

#include <kvx/store/file_store.hpp>
#include <kvx/store/memory_store.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include <sys/stat.h>

using namespace kvx;
using namespace kvx::test;

namespace {

digest key(int i) { return field_digest().add("key", i).finish(); }

std::vector<std::byte> bytes_of(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> x(n);
  for (auto& b : x) b = static_cast<std::byte>(random());
  return x;
}

template <class S>
struct made;
template <>
struct made<memory_store> {
  memory_store store;
};
template <>
struct made<file_store> {
  temporary_folder folder;
  file_store store{folder.path() / "frames" / "inner", false};
};

}  // namespace

TEST_CASE_TEMPLATE("what was put is read", S, memory_store, file_store) {
  made<S> m;
  S& s = m.store;
  typename S::reader reader;
  std::vector<digest> keys;
  CHECK(s.list(keys).ok());
  CHECK(keys.empty());
  CHECK(s.open(key(1), reader) == status::code::not_found);
  CHECK(s.erase(key(1)) == status::code::not_found);
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{5000}, std::size_t{3000000}}) {
    const auto bytes = bytes_of(n, 1);
    REQUIRE(s.put(key(1), bytes).ok());
    REQUIRE(s.open(key(1), reader).ok());
    REQUIRE(reader.size() == n);
    std::vector<std::byte> all;
    CHECK(read_all(s, key(1), n, all).ok());
    CHECK(all == bytes);
    if (n > 0) CHECK(read_all(s, key(1), n - 1, all) == status::code::no_space);
    for (std::size_t at = 0; at <= n; at += 1 + n / 7) {
      std::vector<std::byte> piece(std::min<std::size_t>(100, n - at));
      CHECK(reader.read(at, piece).ok());
      CHECK(std::equal(piece.begin(), piece.end(), bytes.begin() + static_cast<std::ptrdiff_t>(at)));
    }
    std::vector<std::byte> one(1);
    CHECK(reader.read(n, one) == status::code::truncated);
    CHECK(reader.read(~std::uint64_t{0}, one) == status::code::truncated);
    CHECK(reader.read(n, {}).ok());
  }
}

TEST_CASE_TEMPLATE("a reader keeps what it opened while the key is put anew and erased", S, memory_store, file_store) {
  made<S> m;
  const auto before = bytes_of(70000, 1), after = bytes_of(50, 2);
  REQUIRE(m.store.put(key(1), before).ok());
  typename S::reader old, fresh;
  REQUIRE(m.store.open(key(1), old).ok());
  REQUIRE(m.store.put(key(1), after).ok());
  REQUIRE(m.store.open(key(1), fresh).ok());
  REQUIRE(m.store.erase(key(1)).ok());
  CHECK(m.store.open(key(1), old) == status::code::not_found);
  std::vector<std::byte> x(before.size()), y(after.size());
  CHECK(old.read(0, x).ok());
  CHECK(fresh.read(0, y).ok());
  CHECK(x == before);
  CHECK(y == after);
}

TEST_CASE_TEMPLATE("random operations against a map", S, memory_store, file_store) {
  made<S> m;
  std::map<digest, std::vector<std::byte>> model;
  std::mt19937 random(5);
  for (int round = 0; round < 400; ++round) {
    const digest k = key(static_cast<int>(random() % 10));
    if (random() % 3 == 0) {
      CHECK(m.store.erase(k).ok() == (model.erase(k) > 0));
    } else {
      model[k] = bytes_of(random() % 300, static_cast<unsigned>(round));
      CHECK(m.store.put(k, model[k]).ok());
    }
    std::vector<digest> keys, expected;
    REQUIRE(m.store.list(keys).ok());
    std::sort(keys.begin(), keys.end());
    for (const auto& [name, bytes] : model) expected.push_back(name);
    CHECK(keys == expected);
    for (const auto& [name, bytes] : model) {
      std::vector<std::byte> all;
      CHECK(read_all(m.store, name, 1000, all).ok());
      CHECK(all == bytes);
    }
  }
}

TEST_CASE("bytes beyond what a file may hold are refused, and no signal") {
  made<file_store> m;
  const auto bytes = bytes_of(5000, 4);
  REQUIRE(m.store.put(key(1), bytes).ok());
  {
    const limited_files to(4096);
    CHECK(m.store.put(key(1), bytes_of(5000, 5)) == status::code::io);
    CHECK(m.store.put(key(2), bytes_of(4096, 6)).ok());
  }
  std::vector<std::byte> all;
  CHECK(read_all(m.store, key(1), 5000, all).ok());
  CHECK(all == bytes);
}

TEST_CASE("a folder outlives its store; strange files in it are no frames") {
  temporary_folder folder;
  const auto bytes = bytes_of(999, 3);
  REQUIRE(file_store(folder.path()).put(key(1), bytes).ok());
  std::ofstream(folder.path() / "notes.txt") << "x";
  std::ofstream(folder.path() / "0123.kvx") << "x";
  std::filesystem::create_directory(folder.path() / (to_hex(key(2)) + ".kvx"));
  const file_store again(folder.path());
  std::vector<std::byte> all;
  CHECK(read_all(again, key(1), 1000, all).ok());
  CHECK(all == bytes);
  file_store::reader reader;
  CHECK(again.open(key(2), reader) == status::code::io);
  // A pipe that nobody writes to is not waited for, under a frame's name or that of a leftover.
  REQUIRE(::mkfifo((folder.path() / (to_hex(key(3)) + ".kvx")).c_str(), 0600) == 0);
  REQUIRE(::mkfifo((folder.path() / "left.partial").c_str(), 0600) == 0);
  CHECK(again.open(key(3), reader) == status::code::io);
  CHECK(file_store(folder.path()).remove_leftovers().ok());
  const auto permissions = std::filesystem::status(folder.path() / (to_hex(key(1)) + ".kvx")).permissions();
  CHECK((permissions & (std::filesystem::perms::group_all | std::filesystem::perms::others_all)) == std::filesystem::perms::none);
}
