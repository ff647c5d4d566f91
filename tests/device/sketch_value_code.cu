// Values are encoded on the device to the bits of the definition; keys whose values are not finite are forgotten.

#include <kvx/backend/device.cuh>
#include <kvx/sketch/cuda/key_code.cuh>
#include <kvx/sketch/cuda/value_code.cuh>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "device/batch_on_device.cuh"
#include "device/device_array.cuh"
#include "support/key_code.hpp"
#include "support/paged_rows.hpp"
#include "support/value_code.hpp"

namespace {

using namespace kvx;
using namespace kvx::test;

constexpr key_sketch sketch{.bits = 2, .balance = 0};

/// Columns on the device, every byte 0xff at first, and what has become of them.
struct columns_on_device {
  page_shape shape;
  int bits, heads;
  std::int64_t pages;
  std::array<device_array<std::byte>, tiered_column_count> bytes = {};
  std::array<column_array, tiered_column_count> all = {};
  std::array<std::vector<std::byte>, tiered_column_count> left = {};

  columns_on_device(page_shape s, int value_bits, int h, std::int64_t n) : shape(s), bits(value_bits), heads(h), pages(n) {
    const auto columns = tiered_columns(sketch, bits, s);
    for (std::size_t c = 0; c < columns.size(); ++c) {
      if (columns[c].block_bytes == 0) continue;
      bytes[c] = device_array<std::byte>(static_cast<std::size_t>(columns[c].pitch() * heads * pages));
      all[c] = {bytes[c].data(), columns[c].pitch(), heads, pages * columns[c].pitch()};
    }
  }
  void read() {
    for (std::size_t c = 0; c < bytes.size(); ++c) left[c] = bytes[c].read();
  }
  /// Whether a block holds these values, and the bytes behind it what they held before.
  template <class T>
  bool holds(int c, std::int64_t page, std::int64_t head, const std::vector<T>& expected) const {
    const auto at = static_cast<std::size_t>(c);
    const std::size_t size = expected.size() * sizeof(T);
    if (all[at].data == nullptr) return size == 0;
    const std::byte* const block = left[at].data() + head * all[at].head_stride + page * all[at].pitch;
    bool same = std::memcmp(block, expected.data(), size) == 0;
    for (auto i = static_cast<std::int64_t>(size); i < all[at].pitch; ++i) same = same && block[i] == std::byte{0xff};
    return same;
  }
};

/// Encodes every page of a sequence's rows, columns under the ids of the pages.
template <int Bits, class E>
void check(const paged_rows<E>& rows) {
  const row_view<const E> view = rows.view();
  const auto& table = rows.tables()[0];
  columns_on_device columns({view.page_tokens, view.key_dim, view.value_dim}, Bits, view.heads, std::ssize(table));
  const rows_on_device<E> there(rows);
  std::vector<page_to_encode> list;
  for (const std::int32_t page : table) list.push_back({page, page, nullptr});
  const device_array<page_to_encode> pages(list);
  const test_stream stream;
  const device exec{.stream = stream.get()};
  encode_pages(exec, sketch, there.view(), key_columns_of(columns.all), pages.data(), std::ssize(list));
  encode_values<Bits>(exec, sketch, there.view(), key_columns_of(columns.all), value_columns_of(columns.all), pages.data(),
                      std::ssize(list));
  stream.wait();
  columns.read();
  for (const std::int32_t page : table) {
    for (int h = 0; h < view.heads; ++h) {
      const auto of = [&](const row_array<const E>& from, int dim) {
        std::vector<E> vectors;
        for (int t = 0; t < view.page_tokens; ++t) vectors.insert(vectors.end(), from.at(page, h, t), from.at(page, h, t) + dim);
        return vectors;
      };
      const std::vector<E> values = of(view.value, view.value_dim);
      const coded_values expected = encode_values_slowly(Bits, sketch.seed, values, view.value_dim);
      CHECK(columns.holds(first_value_column + value_codes, page, h, expected.codes));
      CHECK(columns.holds(first_value_column + value_scales, page, h, expected.scales));
      CHECK(columns.holds(first_value_column + value_means, page, h, expected.means));
      coded_page key = encode_page_slowly(sketch, of(view.key, view.key_dim), view.key_dim, nullptr);
      for (int t = 0; t < view.page_tokens; ++t) {
        bool finite = true;
        for (int d = 0; d < view.value_dim; ++d) {
          const float x = to_float(values[static_cast<std::size_t>(t * view.value_dim + d)]);
          finite = finite && x - x == 0;
        }
        if (Bits > 0) finite = !is_nan(to_float(expected.scales[static_cast<std::size_t>(t)]));
        if (!finite)
          forget_key(sketch, view.key_dim, view.page_tokens, t,
                     {key.signs.data(), key.norms.data(), key.means.data(), key.magnitudes.data(), key.weights.data()});
      }
      CHECK(columns.holds(column_signs, page, h, key.signs));
      CHECK(columns.holds(column_norms, page, h, key.norms));
      CHECK(columns.holds(column_magnitudes, page, h, key.magnitudes));
      CHECK(columns.holds(column_weights, page, h, key.weights));
    }
  }
}

paged_shape shape(int dim, int page_tokens, std::int64_t pages, int gap = 0) {
  return {.heads = 2,
          .page_tokens = page_tokens,
          .key_dim = 8,
          .value_dim = dim,
          .lengths = {pages * page_tokens},
          .offset = gap,
          .gap = gap,
          .seed = static_cast<unsigned>(dim)};
}

}  // namespace

TEST_CASE("codes, scales and means of the definition: dims that fill bytes and words, and those that do not") {
  for (const int dim : {1, 2, 3, 5, 8, 9, 16, 17, 31, 46, 64, 72, 80, 96, 128, 192, 576}) {
    CAPTURE(dim);
    check<4>(paged_rows<bf16>(shape(dim, 4, 1)));
    check<2>(paged_rows<float>(shape(dim, 4, 1, dim % 3)));
  }
}

TEST_CASE("pages of one token to those of several tiles, rows that lie anyhow, means alone") {
  for (const int P : {1, 2, 16, 64}) {
    CAPTURE(P);
    check<4>(paged_rows<kvx::half>(shape(24, P, 2, 1)));
    check<2>(paged_rows<bf16>(shape(20, P, 2)));
    check<0>(paged_rows<float>(shape(13, P, 2)));
  }
}

TEST_CASE("values that are not finite, and too far ones: no code, no key, and nobody else's mean") {
  for (const float bad : {infinity, -infinity, quiet_nan, 0x1p70f}) {
    CAPTURE(bad);
    paged_rows<float> rows(shape(24, 32, 2));
    rows.value(0, 5, 0)[23] = bad;
    rows.value(0, 31, 1)[0] = bad;
    rows.value(0, 32, 0)[7] = bad;
    check<4>(rows);
    check<2>(rows);
    check<0>(rows);
  }
}

TEST_CASE("constant values are their mean: codes of scale 0") {
  paged_rows<bf16> rows(shape(40, 16, 1));
  for (std::int64_t t = 0; t < 16; ++t) {
    for (int h = 0; h < 2; ++h) std::fill_n(rows.value(0, t, h), 40, round_to<bf16>(-3.25f));
  }
  check<4>(rows);
  check<2>(rows);
}
