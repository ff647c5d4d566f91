// Chosen rows are found in near pages, slots and far pages as the plain rules say, and hold what was written, whatever moves between.

#include "device_array.cuh"

#include <support/hot_rows.hpp>

#include <kvx/core/scratch_parts.hpp>
#include <kvx/layout/cuda/fetch_rows.cuh>
#include <kvx/layout/cuda/move_pages.cuh>
#include <kvx/layout/page_shape.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

namespace {

using namespace kvx;
using test::device_array;

/// The first of K and the last of V at each address, -1 where it is null.   to (n, 2)
template <class E>
__global__ void read_rows(const E* const* found, std::int64_t value_at, int value_dim, float* to) {
  const E* const row = found[blockIdx.x];
  to[2 * blockIdx.x] = row != nullptr ? to_float(row[0]) : -1.0f;
  to[2 * blockIdx.x + 1] = row != nullptr ? to_float(row[value_at + value_dim - 1]) : -1.0f;
}

template <class E>
struct world {
  static constexpr int H = 2, near_pages = 3, far_pages = 6;
  page_shape shape;
  int slots;
  std::int64_t P = shape.tokens, row = pitch_of<E>(shape).row, page = H * P * row;
  device_array<E> near{static_cast<std::size_t>(near_pages * page)}, far{static_cast<std::size_t>(far_pages * page)};
  scratch_parts size;
  hot_rows<E> counted = place_hot_rows<E>(size, H, slots, far_pages* P, row);
  device_array<std::byte> memory{static_cast<std::size_t>(size.used)};
  scratch_parts parts{memory.data()};
  hot_rows<E> hot = place_hot_rows<E>(parts, H, slots, far_pages* P, row);
  device_array<std::uint64_t> shown{slot_counts * H};
  row_view<E> near_view = rows_at<E>(near.data(), shape, H, page, P* row);
  row_view<E> far_view = rows_at<E>(far.data(), shape, H, page, P* row);
  far_rows<E> beyond{far_view.key, far_view.value, near_pages};
  std::vector<float> written;  // (frames, H, P): what a row's ends are
  std::vector<test::hot_rows_reference> expected;
  std::int64_t found_near[H] = {};
  std::mt19937_64 random{3};

  world(page_shape s, int slot_count) : shape(s), slots(slot_count) {
    hot.shown = shown.data();
    clear_hot_rows(device{}, hot, H);
    for (int h = 0; h < H; ++h) expected.emplace_back(slots);
    written.resize(static_cast<std::size_t>((near_pages + far_pages) * H * P));
    std::vector<E> values(near.size() + far.size());
    for (std::size_t r = 0; r < written.size(); ++r) {
      written[r] = static_cast<float>(r + 1);
      for (std::int64_t d = 0; d < row; ++d)
        values[r * static_cast<std::size_t>(row) + static_cast<std::size_t>(d)] = round_to<E>(written[r]);
    }
    near.write(std::span(values).first(near.size()));
    far.write(std::span(values).subspan(near.size()));
  }
  std::size_t at(std::int64_t frame, std::int64_t head, std::int64_t slot) const {
    return static_cast<std::size_t>((frame * H + head) * P + slot);
  }
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n)); }

  void move(const std::vector<copied_pages>& moves) {
    const device_array<copied_pages> there(moves);
    move_pages(device{}, near_view, beyond, hot, there.data(), std::ssize(moves));
    const std::vector<float> before = written;
    for (const copied_pages& m : moves) {
      for (int h = 0; h < H; ++h) {
        for (std::int64_t s = 0; s < m.count; ++s) written[at(m.to, h, s)] = before[at(m.from, h, s)];
        for (std::int64_t s = 0; s < P && m.to >= near_pages; ++s)
          expected[static_cast<std::size_t>(h)].forget((m.to - near_pages) * P + s);
      }
    }
  }

  /// One step: two sequences of the given frames, `tokens` new tokens of the first, one of the second.
  void step(const std::vector<std::vector<std::int32_t>>& frames, std::int64_t tokens, std::int64_t keep, std::int64_t most) {
    std::vector<device_array<std::int32_t>> tables;
    std::vector<batch_item> items;
    std::vector<std::int32_t> entry_of;
    for (std::size_t e = 0; e < frames.size(); ++e) {
      tables.emplace_back(frames[e]);
      const std::int64_t queries = e == 0 ? tokens : 1;
      items.push_back({tables.back().data(), std::ssize(frames[e]) * P, queries, std::ssize(entry_of)});
      entry_of.insert(entry_of.end(), static_cast<std::size_t>(queries), static_cast<std::int32_t>(e));
    }
    const device_array<batch_item> items_there(items);
    const device_array<std::int32_t> entries_there(entry_of);
    const std::int64_t N = std::ssize(entry_of), pitch = most + 3;
    std::vector<std::int32_t> ids(static_cast<std::size_t>(N * H * pitch), -1), counts;
    std::vector<const E*> right(ids.size(), reinterpret_cast<const E*>(~std::uintptr_t{0}));
    for (int h = 0; h < H; ++h) {
      std::vector<std::int64_t> chosen;
      std::vector<std::size_t> places;
      for (std::int64_t n = 0; n < N; ++n) {
        const auto& table = frames[static_cast<std::size_t>(entry_of[static_cast<std::size_t>(n)])];
        std::set<std::int32_t> mine;
        while (std::cmp_less(mine.size(), std::min(below(keep + 1), std::ssize(table) * P)))
          mine.insert(static_cast<std::int32_t>(below(std::ssize(table) * P)));
        const auto first = static_cast<std::size_t>((n * H + h) * pitch);
        std::fill_n(right.begin() + static_cast<std::ptrdiff_t>(first), most, nullptr);
        for (std::size_t i = 0; const std::int32_t id : mine) {
          ids[first + i] = id;
          const std::int64_t frame = table[static_cast<std::size_t>(id / P)], slot = id % P;
          if (frame < near_pages) {
            right[first + i] = near_view.key.at(frame, h, slot);
            ++found_near[h];
          } else {
            chosen.push_back((frame - near_pages) * P + slot);
            places.push_back(first + i);
            right[first + i] = far_view.key.at(frame - near_pages, h, slot);
          }
          ++i;
        }
      }
      const std::vector<int> slot = expected[static_cast<std::size_t>(h)].take(chosen);
      for (std::size_t i = 0; i < slot.size(); ++i) {
        if (slot[i] >= 0) right[places[i]] = hot.row(h, slot[i]);
      }
    }
    std::vector<float> ends;  // (units, most, 2)
    for (std::int64_t u = 0; u < N * H; ++u) {
      const auto& table = frames[static_cast<std::size_t>(entry_of[static_cast<std::size_t>(u / H)])];
      std::int32_t count = 0;
      for (std::int64_t i = 0; i < most; ++i) {
        const std::int32_t id = ids[static_cast<std::size_t>(u * pitch + i)];
        const float x = id < 0 ? -1 : written[at(table[static_cast<std::size_t>(id / P)], u % H, id % P)];
        ends.insert(ends.end(), 2, x);
        count += id >= 0;
      }
      counts.push_back(count);
    }
    const device_array<std::int32_t> ids_there(ids), counts_there(counts);
    const device_array<const E*> found(ids.size());
    fetch_rows<E>(device{}, near_view, beyond, hot,
                  {items_there.data(), entries_there.data(), N, static_cast<int>(items.size()), tokens, 0},
                  {ids_there.data(), counts_there.data(), pitch, most}, found.data());
    const std::vector<const E*> places = found.read();
    CHECK(places == right);
    std::vector<float> read;
    const device_array<float> values(static_cast<std::size_t>(2 * most));
    for (std::int64_t u = 0; u < N * H; ++u) {
      launch(device{}, {dim3(static_cast<unsigned>(most)), 1}, read_rows<E>, static_cast<const E* const*>(found.data() + u * pitch),
             pitch_of<E>(shape).value, shape.value_dim, values.data());
      const std::vector<float> part = values.read();
      read.insert(read.end(), part.begin(), part.end());
    }
    CHECK(read == ends);
    for (int h = 0; h < H; ++h) {
      const auto& e = expected[static_cast<std::size_t>(h)];
      const std::vector<std::uint64_t> counted{shown.read()};
      const auto first = counted.begin() + std::ptrdiff_t{slot_counts} * h;
      CHECK(std::vector<std::uint64_t>(first, first + slot_counts) ==
            std::vector<std::uint64_t>{static_cast<std::uint64_t>(found_near[h]), static_cast<std::uint64_t>(e.hot),
                                       static_cast<std::uint64_t>(e.far), static_cast<std::uint64_t>(e.far)});
    }
  }
};

/// Steps of two sequences that share a far page; frames are filled anew between.
template <class E>
void decode(page_shape shape, int slots, std::int64_t keep, int steps) {
  world<E> w(shape, slots);
  for (int i = 0; i < steps; ++i) {
    CAPTURE(i);
    const auto far = static_cast<std::int32_t>(i % 3 == 2 ? 8 : 4 + i % 3);
    w.step({{0, 3, far, 1}, {6, far, 2, 7}}, 1 + i % 3, keep, keep + 2);
    if (i % 4 == 1) w.move({{1, far, w.P}});            // a far frame is filled anew
    if (i % 6 == 2) w.move({{far, 2, w.P - 1}});        // and a near one from afar, but for its last row
    if (i % 6 == 5) w.move({{0, 7, w.P}, {1, 3, w.P}});
  }
  CHECK(w.expected[0].hot > 0);
}

}  // namespace

TEST_CASE("rows are found where the plain rules put them: many slots, few, fewer than a choice, none") {
  for (const int slots : {70, 9, 3, 1, 0}) {
    CAPTURE(slots);
    world<float> w({.tokens = 4, .key_dim = 9, .value_dim = 6}, slots);
    for (int i = 0; i < 6; ++i) {
      w.step({{0, 3, 5, 1, 8}, {6, 3, 2, 7}}, 1 + i % 2, 7, 9);
      if (i == 3) w.move({{0, 3, 4}, {2, 6, 4}});
    }
  }
}
TEST_CASE("frames that are filled anew leave nothing in their slots") {
  decode<bf16>({.tokens = 4, .key_dim = 40, .value_dim = 24}, 24, 9, 14);
  decode<float>({.tokens = 8, .key_dim = 5, .value_dim = 3}, 1200, 30, 6);  // more slots than threads
}
