// Pitches of every dimension and element: parts start on 16 bytes, nothing overlaps, nothing is wasted.

#include <kvx/core/element.hpp>
#include <kvx/layout/page_shape.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <initializer_list>

TEST_CASE_TEMPLATE("both parts of a row start on 16 bytes and waste less than that", E, float, kvx::half, kvx::bf16) {
  constexpr auto size = static_cast<std::int64_t>(sizeof(E));
  for (int d = 1; d <= 576; ++d) {
    for (const int dv : {1, d, 577 - d, 576, 128}) {
      const kvx::row_pitch pitch = kvx::pitch_of<E>({64, d, dv});
      REQUIRE(pitch.value * size % 16 == 0);
      REQUIRE(pitch.row * size % 16 == 0);
      REQUIRE(pitch.value >= d);
      REQUIRE((pitch.value - d) * size < 16);
      REQUIRE(pitch.row - pitch.value >= dv);
      REQUIRE((pitch.row - pitch.value - dv) * size < 16);
    }
  }
}

TEST_CASE("shapes at the limits, and beyond") {
  CHECK(kvx::is_valid({1, 1, 1}));
  CHECK(kvx::is_valid({65536, 576, 576}));
  for (const kvx::page_shape s : std::initializer_list<kvx::page_shape>{{0, 1, 1},
                                                                        {-1, 1, 1},
                                                                        {3, 1, 1},
                                                                        {48, 64, 64},
                                                                        {131072, 64, 64},
                                                                        {64, 0, 64},
                                                                        {64, 64, 0},
                                                                        {64, 577, 64},
                                                                        {64, 64, 577},
                                                                        {64, -8, 64}}) {
    CAPTURE(s.tokens);
    CAPTURE(s.key_dim);
    CAPTURE(s.value_dim);
    CHECK_FALSE(kvx::is_valid(s));
  }
}

TEST_CASE("bytes are counted exactly, or not at all") {
  CHECK(kvx::row_bytes<kvx::half>({64, 128, 128}, 1000, 8) == std::int64_t{1000} * 8 * 64 * 256 * 2);
  CHECK(kvx::row_bytes<float>({1, 1, 1}, 1, 1) == 64);  // 32, rounded up
  CHECK(kvx::row_bytes<kvx::half>({64, 128, 128}, std::int64_t{1} << 31, 4096) == (std::int64_t{1} << 58));
  CHECK(kvx::row_bytes<float>({65536, 576, 576}, std::int64_t{1} << 31, 4096) == -1);
  CHECK(kvx::row_bytes<float>({64, 128, 128}, -1, 1) == -1);
}
