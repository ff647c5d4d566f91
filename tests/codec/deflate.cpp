// DEFLATE: what goes in comes out, in less room than fixed width where levels repeat; every damage that lengthens or shortens is an error.

#include <support/guarded.hpp>
#include <support/span_case.hpp>

#include <kvx/codec/deflate.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

std::vector<std::byte> skewed(std::size_t n) {
  std::mt19937 random(1);
  std::vector<std::byte> x(n);
  for (auto& b : x) b = static_cast<std::byte>(random() & random() & random() & 255);
  return x;
}

}  // namespace

TEST_CASE("what goes in comes out, at every level and size") {
  for (const int level : {1, 6, 12}) {
    for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{100}, std::size_t{70000}}) {
      const std::vector<std::byte> in = skewed(n);
      std::vector<std::byte> out(n + 100), back(n);
      std::int64_t bytes = 0;
      REQUIRE(deflate_encode({level}, in, out, bytes).ok());
      if (n > 1000) CHECK(bytes < static_cast<std::int64_t>(n) * 9 / 10);
      out.resize(static_cast<std::size_t>(bytes));
      CHECK(deflate_decode({level}, out, back).ok());
      CHECK(back == in);
      std::vector<std::byte> longer(n + 1), shorter(n > 0 ? n - 1 : 0);
      CHECK(deflate_decode({level}, out, longer) == status::code::corrupt);
      if (n > 0) CHECK(deflate_decode({level}, out, shorter) == status::code::corrupt);
      out.push_back(std::byte{0});
      CHECK(deflate_decode({level}, out, back) == status::code::corrupt);
    }
  }
}

TEST_CASE("too little room is said; no level beyond 12") {
  const std::vector<std::byte> in = skewed(1000);
  std::vector<std::byte> out(100);
  std::int64_t bytes = 0;
  CHECK(deflate_encode({}, in, out, bytes) == status::code::no_space);
  CHECK_THROWS_AS((void)deflate_encode({13}, in, out, bytes), usage_error);
}

TEST_CASE("every truncation and every flipped bit: no read outside, and never more bytes than asked for") {
  const std::vector<std::byte> in = skewed(300);
  std::vector<std::byte> out(400);
  std::int64_t bytes = 0;
  REQUIRE(deflate_encode({}, in, out, bytes).ok());
  out.resize(static_cast<std::size_t>(bytes));
  const guarded back(in.size(), true);
  for (std::size_t n = 0; n < out.size(); ++n) {
    const guarded memory(std::max<std::size_t>(n, 1), true);
    std::memcpy(memory.data(), out.data(), n);
    CHECK(deflate_decode({}, {memory.data(), n}, {back.data(), in.size()}) == status::code::corrupt);
  }
  for (std::size_t i = 0; i < 8 * out.size(); ++i) {
    const guarded memory(out.size(), true);
    std::memcpy(memory.data(), out.data(), out.size());
    memory.data()[i / 8] ^= std::byte{1} << i % 8;
    (void)deflate_decode({}, {memory.data(), out.size()}, {back.data(), in.size()});
  }
}

TEST_CASE("chunks of the faithful mode: smaller than the fixed width, smaller still by components, the same rows") {
  const span_case s(8, 32, 4);
  const std::vector<float> rows = s.rows(256, 6);
  const tensor_view<const float, 2> view(rows.data(), 256, s.rank);
  std::vector<std::byte> out[3];
  std::vector<float> back[3];
  const auto round_trip = [&](const auto& codec, int i) {
    out[i].resize(static_cast<std::size_t>(chunk_bound<float>(256, s.rank)));
    std::int64_t bytes = 0;
    REQUIRE(encode_chunk(host{}, plain_products(), codec, s.model(), view, {}, 0, out[i], bytes).ok());
    out[i].resize(static_cast<std::size_t>(bytes));
    opened_chunk<float> chunk;
    REQUIRE(open_chunk(host{}, codec, s.model(), out[i], 256, s.rank, chunk).ok());
    back[i].resize(rows.size());
    restore_rows(host{}, plain_products(), s.model(), chunk, {}, 0, tensor_view<float, 2>(back[i].data(), 256, s.rank));
    for (std::size_t n = 0; n < out[i].size(); n += 7) {
      opened_chunk<float> cut;
      CHECK_FALSE(open_chunk(host{}, codec, s.model(), std::span<const std::byte>(out[i]).first(n), 256, s.rank, cut).ok());
    }
  };
  round_trip(kvtc_faithful<fixed_width>{}, 0);
  round_trip(kvtc_faithful<deflate>{.entropy = {6, packing::tokens}}, 1);
  round_trip(kvtc_faithful<deflate>{}, 2);
  CHECK(static_cast<chunk_kind>(out[2][0]) == chunk_kind::groups_deflate);
  CHECK(back[0] == back[1]);
  CHECK(back[0] == back[2]);
  MESSAGE("fixed ", out[0].size(), ", by tokens ", out[1].size(), ", by components ", out[2].size());
  CHECK(out[2].size() < out[0].size());
}
