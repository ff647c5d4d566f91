// Rows are written, copied and gathered on the device as their definitions say, and no byte beside them is touched.

#include <kvx/backend/device.cuh>
#include <kvx/layout/cuda/rows.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "device/batch_on_device.cuh"
#include "device/device_array.cuh"
#include "support/paged_rows.hpp"

namespace {

using namespace kvx;
using kvx::test::batch_on_device;
using kvx::test::device_array;
using kvx::test::paged_rows;
using kvx::test::paged_shape;
using kvx::test::rows_on_device;

template <class E>
bool same_bytes(const std::vector<E>& a, const std::vector<E>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(E)) == 0;
}

template <class T>
std::vector<T> random_values(std::int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<T> values(static_cast<std::size_t>(n));
  for (T& x : values) x = round_to<T>(normal(random));
  return values;
}

/// The host's view of rows in a vector that looks like the device's memory.
template <class E>
row_view<E> view_in(std::vector<E>& memory, const paged_rows<E>& rows) {
  row_view<E> view;
  const row_view<const E> like = rows.view();
  view.key = {memory.data() + rows.offset(), like.key.page_stride, like.key.head_stride, like.key.slot_stride};
  view.value = {memory.data() + rows.offset() + (like.value.data - like.key.data), like.value.page_stride, like.value.head_stride,
                like.value.slot_stride};
  view.heads = like.heads;
  view.page_tokens = like.page_tokens;
  view.key_dim = like.key_dim;
  view.value_dim = like.value_dim;
  return view;
}

/// New tokens of several sequences; strides of k and v in elements between tokens, heads, components.
template <class E, class T>
void check_append(const paged_shape& shape, int stretch) {
  const paged_rows<E> rows(shape);
  const rows_on_device<E> there(rows);
  const std::size_t entries = shape.lengths.size();
  std::vector<batch_item> items;
  std::int64_t n = 0;
  for (std::size_t i = 0; i < entries; ++i) {
    const std::int64_t queries = std::min<std::int64_t>(shape.lengths[i], static_cast<std::int64_t>(i % 3) * 20 + (i == 1 ? 0 : 1));
    items.push_back(rows.item(i, queries, n));
    n += queries;
  }
  const batch_on_device batch(there.tables(), items);
  const std::int64_t H = shape.heads, D = shape.key_dim, Dv = shape.value_dim;
  const std::vector<T> k = random_values<T>(n * H * D * stretch + 1, 3), v = random_values<T>(n * H * Dv * stretch + 1, 4);
  const device_array<T> k_there(k), v_there(v);
  const auto strided = [&](const T* data, std::int64_t dim) {
    tensor_view<const T, 3> view(data, n, H, dim);
    for (std::int64_t& s : view.strides) s *= stretch;
    return view;
  };
  append_rows(device{}, there.writer(), batch.view(), strided(k_there.data(), D), strided(v_there.data(), Dv));

  std::vector<E> expected = rows.memory();
  const row_view<E> view = view_in(expected, rows);
  for (const batch_item& item : items) {
    for (std::int64_t i = 0; i < item.queries; ++i) {
      const std::int64_t at = item.length - item.queries + i, page = item.pages[at / shape.page_tokens], slot = at % shape.page_tokens;
      for (std::int64_t h = 0; h < H; ++h) {
        const std::int64_t row = (item.first + i) * H + h;
        for (std::int64_t d = 0; d < D; ++d)
          view.key.at(page, h, slot)[d] = round_to<E>(to_float(k[static_cast<std::size_t>((row * D + d) * stretch)]));
        for (std::int64_t d = 0; d < Dv; ++d)
          view.value.at(page, h, slot)[d] = round_to<E>(to_float(v[static_cast<std::size_t>((row * Dv + d) * stretch)]));
      }
    }
  }
  CHECK(same_bytes(there.memory(), expected));
}

}  // namespace

TEST_CASE("append: dims, elements, alignments, strides of k and v") {
  for (const int d : {1, 7, 8, 46, 72, 80, 128, 192, 576}) {
    CAPTURE(d);
    const int gap = d % 3, offset = d % 2;
    check_append<bf16, float>({.heads = 3, .page_tokens = 16, .key_dim = d, .value_dim = 577 - d, .lengths = {3, 40, 70}, .offset = offset},
                              1);
    check_append<bf16, bf16>({.heads = 2, .page_tokens = 1, .key_dim = d, .value_dim = d, .lengths = {30, 9}, .gap = gap}, 1);
    check_append<kvx::half, float>({.heads = 2, .page_tokens = 32, .key_dim = d, .value_dim = d, .lengths = {30, 9}, .gap = gap},
                                   1 + d % 2);
    check_append<float, kvx::half>({.heads = 5, .page_tokens = 64, .key_dim = d, .value_dim = d, .lengths = {30, 9}, .offset = 4 * offset},
                                   1);
    check_append<float, float>({.heads = 1, .page_tokens = 8, .key_dim = d, .value_dim = 16, .lengths = {30, 9, 100}}, 3);
  }
}

TEST_CASE("append: tokens of no entry, and those that an entry no longer brings, write nothing") {
  const paged_rows<bf16> rows({.heads = 2, .page_tokens = 16, .key_dim = 16, .value_dim = 8, .lengths = {40, 20}});
  const rows_on_device<bf16> there(rows);
  batch_on_device batch(there.tables(), {rows.item(0, 3, 0), rows.item(1, 2, 3)});
  batch.set_entries({0, 0, -1, 1, 1, -1, 0});
  batch_item fewer = rows.item(1, 1, 3);
  batch.set_item(1, fewer);
  const device_array<float> k(random_values<float>(7 * 2 * 16, 1)), v(random_values<float>(7 * 2 * 8, 2));
  append_rows(device{}, there.writer(), batch.view(), tensor_view<const float, 3>(k.data(), 7, 2, 16),
              tensor_view<const float, 3>(v.data(), 7, 2, 8));
  std::vector<bf16> expected = rows.memory();
  const row_view<bf16> view = view_in(expected, rows);
  const auto k_here = k.read(), v_here = v.read();
  const auto put = [&](std::size_t entry, std::int64_t position, std::size_t n) {
    for (std::size_t h = 0; h < 2; ++h) {
      const std::int64_t page = rows.tables()[entry][static_cast<std::size_t>(position / 16)];
      for (std::size_t d = 0; d < 16; ++d)
        view.key.at(page, static_cast<std::int64_t>(h), position % 16)[d] = round_to<bf16>(k_here[(n * 2 + h) * 16 + d]);
      for (std::size_t d = 0; d < 8; ++d)
        view.value.at(page, static_cast<std::int64_t>(h), position % 16)[d] = round_to<bf16>(v_here[(n * 2 + h) * 8 + d]);
    }
  };
  put(0, 37, 0), put(0, 38, 1), put(1, 19, 3);
  CHECK(same_bytes(there.memory(), expected));
}

TEST_CASE_TEMPLATE("copies of pages, one and several at once", E, float, bf16) {
  for (const int d : {5, 64}) {
    // One sequence of one token a page for each page: ids 0 .. 19 exist, in some order.
    const paged_rows<E> rows({.heads = 3, .page_tokens = 8, .key_dim = d, .value_dim = 24, .lengths = {160}, .gap = d % 2});
    for (const std::int64_t count : {1, 7, 8, 9, 31, 40}) {
      rows_on_device<E> there(rows);
      copy_rows(device{}, there.writer(), 2, 10, count);
      std::vector<E> expected = rows.memory();
      const row_view<E> view = view_in(expected, rows);
      const auto copy = [&](std::int64_t from, std::int64_t to, std::int64_t n) {
        for (std::int64_t i = 0; i < n; ++i) {
          for (std::int64_t h = 0; h < 3; ++h) {
            std::copy_n(view.key.at(from + i / 8, h, i % 8), d, view.key.at(to + i / 8, h, i % 8));
            std::copy_n(view.value.at(from + i / 8, h, i % 8), 24, view.value.at(to + i / 8, h, i % 8));
          }
        }
      };
      copy(2, 10, count);
      CHECK(same_bytes(there.memory(), expected));
      const device_array<copied_pages> list(std::vector<copied_pages>{{0, 16, 3}, {4, 4, 0}, {2, 5, std::min<std::int64_t>(count, 19)}});
      copy_listed_rows(device{}, there.writer(), list.data(), 3, 19);
      copy(0, 16, 3), copy(2, 5, std::min<std::int64_t>(count, 19));
      CHECK(same_bytes(there.memory(), expected));
    }
  }
}

TEST_CASE("copies of column blocks") {
  constexpr std::int64_t pages = 12;
  for (const std::int64_t pitch : {64, 192, 9088}) {
    const std::int64_t head_stride = pitch * pages + 64;
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(2 * head_stride));
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 131 >> 3);
    const device_array<std::uint8_t> there(bytes);
    const column_array column{reinterpret_cast<std::byte*>(there.data()), pitch, 2, head_stride};
    const device_array<copied_pages> list(std::vector<copied_pages>{{0, 8, 1}, {3, 9, 2}});
    copy_blocks(device{}, column, 1, 4, 3);
    copy_listed_blocks(device{}, column, list.data(), 2, 2);
    const auto copy = [&](std::int64_t from, std::int64_t to, std::int64_t n) {
      for (std::int64_t h = 0; h < 2; ++h)
        std::memcpy(bytes.data() + h * head_stride + to * pitch, bytes.data() + h * head_stride + from * pitch,
                    static_cast<std::size_t>(n * pitch));
    };
    copy(1, 4, 3), copy(0, 8, 1), copy(3, 9, 2);
    CHECK(there.read() == bytes);
  }
}

TEST_CASE_TEMPLATE("chosen rows side by side", E, float, kvx::half) {
  for (const int d : {7, 128}) {
    const paged_rows<E> rows({.heads = 2, .page_tokens = 16, .key_dim = d, .value_dim = 40, .lengths = {300, 20}, .offset = d % 2});
    const rows_on_device<E> there(rows);
    const std::vector<batch_item> items = {rows.item(0, 1, 0), rows.item(1, 2, 1)};
    const batch_on_device batch(there.tables(), items);
    std::vector<std::int32_t> ids(6 * 170, -1), counts = {0, 131, 20, 1, 2, -1};
    for (std::size_t u = 0; u < 6; ++u) {
      for (int i = 0; i < counts[u]; ++i) ids[u * 170 + static_cast<std::size_t>(i)] = u < 2 ? 2 * i + 1 : i;
    }
    const device_array<std::int32_t> ids_there(ids), counts_there(counts);
    const device_array<E> keys(6 * 150 * static_cast<std::size_t>(d)), values(6 * 150 * 40);
    gather_rows<E>(device{}, there.view(), batch.view(), {ids_there.data(), counts_there.data(), 170, 150},
                   tensor_view<E, 3>(keys.data(), 6, 150, d), tensor_view<E, 3>(values.data(), 6, 150, 40));
    std::vector<E> k(keys.size()), v(values.size());
    std::memset(static_cast<void*>(k.data()), 0xff, k.size() * sizeof(E));
    std::memset(static_cast<void*>(v.data()), 0xff, v.size() * sizeof(E));
    for (std::size_t u = 0; u < 6; ++u) {
      const auto& table = rows.tables()[u < 2 ? 0 : 1];
      for (int i = 0; i < counts[u]; ++i) {
        const std::int32_t t = ids[u * 170 + static_cast<std::size_t>(i)];
        const std::int64_t page = table[static_cast<std::size_t>(t / 16)], head = static_cast<std::int64_t>(u % 2);
        const std::size_t row = u * 150 + static_cast<std::size_t>(i);
        std::copy_n(rows.view().key.at(page, head, t % 16), d, k.begin() + static_cast<std::ptrdiff_t>(row * static_cast<std::size_t>(d)));
        std::copy_n(rows.view().value.at(page, head, t % 16), 40, v.begin() + static_cast<std::ptrdiff_t>(row * 40));
      }
    }
    CHECK(same_bytes(keys.read(), k));
    CHECK(same_bytes(values.read(), v));
  }
}
