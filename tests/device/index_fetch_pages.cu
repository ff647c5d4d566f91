// Semantic pages that were found come into the slots that the plain rules give them, whole, and hold what was written.

#include "device_array.cuh"

#include <support/hot_pages.hpp>

#include <kvx/attend/cuda/page_call.cuh>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/index/cuda/fetch_pages.cuh>
#include <kvx/layout/cuda/move_pages.cuh>
#include <kvx/layout/page_shape.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace {

using namespace kvx;
using test::device_array;

/// Two sequences whose pages have ids of columns and frames of rows; blocks of four pages.
template <class E>
struct world {
  static constexpr int H = 2, near_pages = 3, far_pages = 25, pages = 24;
  page_shape shape;
  int units;
  std::int64_t P = shape.tokens, row = pitch_of<E>(shape).row, page = H * P * row;
  int slots = static_cast<int>(units * P);
  dci_shape index{.block = static_cast<int>(4 * P)};
  device_array<E> near{static_cast<std::size_t>(near_pages * page)}, far{static_cast<std::size_t>(far_pages * page)};
  scratch_parts size;
  hot_rows<E> counted = place_hot_rows<E>(size, H, slots, far_pages* P, row, shape.tokens);
  device_array<std::byte> memory{static_cast<std::size_t>(size.used)};
  scratch_parts parts{memory.data()};
  hot_rows<E> hot = place_hot_rows<E>(parts, H, slots, far_pages* P, row, shape.tokens);
  device_array<std::uint64_t> shown{slot_counts * H};
  row_view<E> near_view = rows_at<E>(near.data(), shape, H, page, P* row);
  row_view<E> far_view = rows_at<E>(far.data(), shape, H, page, P* row);
  far_rows<E> beyond{far_view.key, far_view.value, near_pages};
  std::int64_t pitch = round_up(packed_page::block_bytes(index, shape.tokens), 16);
  std::vector<std::byte> members = std::vector<std::byte>(static_cast<std::size_t>(pages * H * pitch));
  std::vector<float> written;  // (frames, H, P)
  std::vector<test::hot_pages_reference> expected;
  std::mt19937_64 random{5};

  world(page_shape s, int unit_count) : shape(s), units(unit_count) {
    hot.shown = shown.data();
    clear_hot_rows(device{}, hot, H);
    for (int h = 0; h < H; ++h) expected.emplace_back(units, shape.tokens);
    written.resize(static_cast<std::size_t>((near_pages + far_pages) * H * P));
    std::vector<E> values;
    for (std::size_t r = 0; r < written.size(); ++r) {
      written[r] = static_cast<float>(r % 251 + 1);
      values.insert(values.end(), static_cast<std::size_t>(row), round_to<E>(written[r]));
    }
    near.write(std::span(values).first(near.size()));
    far.write(std::span(values).subspan(near.size()));
  }
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n)); }
  packed_page packed(std::int32_t id, int h) {
    return {members.data() + (h * pages + id) * pitch, shape.tokens, packed_page::entry_bytes(index)};
  }

  /// Packs the blocks of a sequence anew; some tokens are in no page.
  void pack(const std::vector<std::int32_t>& ids) {
    for (std::size_t first = 0; first < ids.size(); first += 4) {
      for (int h = 0; h < H; ++h) {
        std::vector<int> tokens(static_cast<std::size_t>(index.block));
        std::iota(tokens.begin(), tokens.end(), 0);
        std::shuffle(tokens.begin(), tokens.end(), random);
        for (std::size_t j = 0; j < 4; ++j) {
          const auto from = tokens.begin() + static_cast<std::ptrdiff_t>(j) * P;
          const int count = j == 3 ? static_cast<int>(below(P)) : shape.tokens;
          std::sort(from, from + count);
          const packed_page to = packed(ids[first + j], h);
          to.count() = count;
          for (int m = 0; m < count; ++m) to.set_member(m, from[m]);
        }
      }
    }
  }

  void move(const std::vector<copied_pages>& moves) {
    const device_array<copied_pages> there(moves);
    move_pages(device{}, near_view, beyond, hot, there.data(), std::ssize(moves));
    const std::vector<float> before = written;
    for (const copied_pages& m : moves) {
      std::copy_n(before.begin() + m.from * H * P, H * P, written.begin() + m.to * H * P);
      for (auto& e : expected) {
        for (std::int64_t s = 0; s < P && m.to >= near_pages; ++s) e.forget((m.to - near_pages) * P + s);
      }
    }
  }

  /// One step: `tokens` new tokens of the first sequence, one of the second, which finds nothing every third time.
  ///
  /// some        of what is found few rows are chosen, else all
  void step(const std::vector<std::vector<std::int32_t>>& ids, const std::vector<std::vector<std::int32_t>>& frames, std::int64_t tokens,
            std::int64_t most, bool some = false) {
    const std::int64_t N = tokens + 1, found_pitch = most + 1;
    const device_array<std::int32_t> tables[] = {device_array(ids[0]), device_array(ids[1]), device_array(frames[0]),
                                                 device_array(frames[1])};
    std::vector<std::int32_t> entry_of(static_cast<std::size_t>(N), 0), found(static_cast<std::size_t>(N * H * found_pitch), -1), counts;
    entry_of.back() = 1;
    const auto items = [&](std::size_t first) {
      return std::vector<batch_item>{{tables[first].data(), std::ssize(ids[0]) * P, tokens, 0},
                                     {tables[first + 1].data(), std::ssize(ids[1]) * P, 1, tokens}};
    };
    const device_array<batch_item> columns(items(0)), rows(items(2));
    std::vector<std::vector<std::vector<std::int64_t>>> chosen(H);  // (H) pages of all units
    const std::int64_t id_pitch = most * P;
    std::vector<std::int32_t> ids_chosen(static_cast<std::size_t>(N * H * id_pitch), -1), chosen_counts;
    for (std::int64_t u = 0; u < N * H; ++u) {
      const auto s = static_cast<std::size_t>(entry_of[static_cast<std::size_t>(u / H)]);
      const int h = static_cast<int>(u % H);
      std::vector<std::int32_t> all(ids[s].size());
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), random);
      all.resize(static_cast<std::size_t>(s == 1 && below(3) == 0 ? 0 : std::min<std::int64_t>(below(most + 1), std::ssize(all))));
      std::sort(all.begin(), all.end());
      std::copy(all.begin(), all.end(), found.begin() + u * found_pitch);
      counts.push_back(static_cast<std::int32_t>(all.size()));
      std::vector<std::int32_t> rows_chosen;
      for (const std::int32_t p : all) {
        const packed_page of = packed(ids[s][static_cast<std::size_t>(p)], h);
        std::vector<std::int64_t> page_rows;
        const std::size_t before = rows_chosen.size();
        for (int m = 0; m < of.count(); ++m) {
          const std::int64_t token = p / 4 * index.block + of.member(m);
          if (below(8) == 0) rows_chosen.push_back(static_cast<std::int32_t>(token));
          const std::int64_t frame = frames[s][static_cast<std::size_t>(token / P)] - near_pages;
          page_rows.push_back(frame < 0 ? -1 : frame * P + token % P);
        }
        if (some && rows_chosen.size() == before) page_rows.clear();
        chosen[static_cast<std::size_t>(h)].push_back(std::move(page_rows));
      }
      std::sort(rows_chosen.begin(), rows_chosen.end());
      std::copy(rows_chosen.begin(), rows_chosen.end(), ids_chosen.begin() + u * id_pitch);
      chosen_counts.push_back(static_cast<std::int32_t>(rows_chosen.size()));
    }
    const device_array<std::byte> members_there(members);
    const device_array<std::int32_t> entries_there(entry_of), found_there(found), counts_there(counts);
    page_search_call<E, page_budget, offloaded_pages<E>> call;
    call.index = index;
    call.page_tokens = shape.tokens;
    call.heads = H;
    call.tokens = N;
    call.rows = near_view;
    call.members = {members_there.data(), pitch, H, pages * pitch};
    call.batch = {columns.data(), entries_there.data(), N, 2, tokens, 0};
    call.row_items = rows.data();
    call.far.far = beyond;
    call.far.hot = hot;
    call.to.found = found_there.data();
    call.to.found_counts = counts_there.data();
    call.to.found_pitch = found_pitch;
    const device_array<std::int32_t> ids_there(ids_chosen), chosen_there(chosen_counts);
    fetch_pages(device{}, call, some ? row_ids{ids_there.data(), chosen_there.data(), id_pitch, id_pitch} : row_ids{});
    for (int h = 0; h < H; ++h) expected[static_cast<std::size_t>(h)].take(chosen[static_cast<std::size_t>(h)]);
    check();
  }

  template <class T>
  std::vector<T> read(const T* from, std::int64_t n) const {
    std::vector<T> values(static_cast<std::size_t>(n));
    if (n > 0) kvx::check("cudaMemcpy", cudaMemcpy(values.data(), from, values.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

  void check() const {
    const std::vector<std::int16_t> slot_of = read(hot.slot_of, H * far_pages * P);
    const std::vector<std::int64_t> row_of = read(hot.row_of, std::int64_t{H} * slots);
    const std::vector<E> held = read(hot.rows, H * slots * row);
    const std::vector<std::uint64_t> counts = shown.read();
    for (int h = 0; h < H; ++h) {
      const test::hot_pages_reference& e = expected[static_cast<std::size_t>(h)];
      const auto at = [&](std::int64_t r) { return static_cast<std::size_t>(h * far_pages * P + r); };
      for (std::int64_t r = 0; r < far_pages * P; ++r) {
        const int slot = slot_of[at(r)];
        REQUIRE(slot == e.slot_of(r));
        if (slot < 0) continue;
        CHECK(row_of[static_cast<std::size_t>(h * slots + slot)] == r);
        const float x = written[static_cast<std::size_t>(((near_pages + r / P) * H + h) * P + r % P)];
        const E* const first = held.data() + (h * slots + slot) * row;
        CHECK(to_float(first[0]) == x);
        CHECK(to_float(first[row - 1]) == x);
      }
      const std::vector<std::int16_t> order = read(hot.order + std::int64_t{h} * slots, units);
      CHECK(std::vector<int>(order.begin(), order.end()) == e.order);
      const std::uint64_t* const c = counts.data() + slot_counts * h;
      CHECK(std::vector<std::uint64_t>(c, c + slot_counts) ==
            std::vector<std::uint64_t>{static_cast<std::uint64_t>(e.near), static_cast<std::uint64_t>(e.hot),
                                       static_cast<std::uint64_t>(e.far), static_cast<std::uint64_t>(e.read)});
    }
  }
};

/// Steps of two sequences that share a block; frames are filled anew, and blocks packed anew, between.
template <class E>
void decode(page_shape shape, int units, std::int64_t most, int steps) {
  world<E> w(shape, units);
  const std::vector<std::vector<std::int32_t>> ids = {{0, 1, 2, 3, 8, 9, 10, 11}, {0, 1, 2, 3}};
  std::vector<std::vector<std::int32_t>> frames = {{0, 3, 4, 5, 6, 1, 7, 8}, {0, 3, 4, 5}};
  w.pack(ids[0]);
  for (int i = 0; i < steps; ++i) {
    CAPTURE(i);
    w.step(ids, frames, 1 + i % 2, most, i % 3 == 2);
    if (i % 3 == 1) w.move({{1, frames[0][6], w.P}});   // a far frame is filled anew
    if (i % 4 == 2) {                                   // a near page leaves, and one comes from afar
      w.move({{2, 9, w.P}, {1, 10, w.P}});
      w.move({{frames[0][7], 1, w.P}});
      frames[0][5] = 10;
      frames[0][7] = 1;
      std::swap(frames[0][5], frames[0][7]);
    }
    if (i % 5 == 3) w.pack({8, 9, 10, 11});
  }
  CHECK(w.expected[0].far > 0);
  if (units > 6) CHECK(w.expected[0].hot > 0);
}

}  // namespace

TEST_CASE("pages are where the plain rules put them: many slots, few, fewer than are found, none") {
  for (const int units : {9, 4, 2, 1, 0}) {
    CAPTURE(units);
    decode<float>({.tokens = 4, .key_dim = 9, .value_dim = 6}, units, 5, 7);
  }
}
TEST_CASE("more pages are found than a block has warps") {
  for (const int units : {40, 20}) {
    world<float> w({.tokens = 2, .key_dim = 4, .value_dim = 4}, units);
    std::vector<std::int32_t> ids(24), frames(24);
    std::iota(ids.begin(), ids.end(), 0);
    std::iota(frames.begin(), frames.end(), 2);
    w.pack(ids);
    for (int i = 0; i < 4; ++i) w.step({ids, {ids.begin(), ids.begin() + 4}}, {frames, {frames.begin(), frames.begin() + 4}}, 2, 24);
  }
}
TEST_CASE("pages of more rows than a warp has lanes, and of one") {
  decode<bf16>({.tokens = 64, .key_dim = 24, .value_dim = 8}, 7, 8, 4);
  decode<bf16>({.tokens = 1, .key_dim = 8, .value_dim = 8}, 3, 6, 6);
}
