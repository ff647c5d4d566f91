#pragma once
// How dense attention on the device is cut into blocks, and which keys each of them sees.

#include <kvx/attend/cuda/key_places.cuh>
#include <kvx/attend/cuda/partial.cuh>
#include <kvx/attend/dense.hpp>
#include <kvx/core/annotate.hpp>
#include <kvx/core/bits.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

inline constexpr int few_rows = 16, prompt_rows = 64;  ///< query rows of a block

/// How one item is cut. A pure function of the item, the heads and the options: neither the rest of the batch nor what the launch was
/// planned for changes a result.
///
/// rows        query rows a KV head: queries * G, row r is query r / G, head r % G of the group
/// tile        rows of a block; few rows are bound by memory, and their keys are split over as many blocks as keep a device busy
/// piece       keys of a block
struct device_cut {
  std::int64_t rows = 0;
  int tile = few_rows;
  std::int64_t tiles = 0;
  std::int64_t piece = 0;
  int pieces = 1;
};

/// Most pieces of each of so many tiles (all heads of an item together make at most so many blocks and one more a tile).
KVX_HD constexpr std::int64_t most_pieces_of(bool prompt, std::int64_t tiles, std::int64_t heads) {
  const std::int64_t wanted = ceil_div(prompt ? 128 : 512, tiles * heads), least = prompt || tiles > 1 ? 1 : 16;
  const std::int64_t most = prompt ? 16 : most_pieces;
  return wanted < least ? least : wanted > most ? most : wanted;
}

KVX_HD constexpr std::int64_t least_piece(bool prompt) { return prompt ? 512 : 128; }

/// `prompts`: whether blocks of many rows exist for these types and dims.
KVX_HD constexpr device_cut cut_of(const attend_item& item, const dense_options& o, std::int64_t heads, std::int64_t group, bool prompts) {
  device_cut c;
  c.rows = item.queries * group;
  const bool prompt = prompts && c.rows > few_rows;
  c.tile = prompt ? prompt_rows : few_rows;
  c.tiles = ceil_div(c.rows, c.tile);
  if (c.tiles == 0) return c;
  const std::int64_t seen = o.window > 0 && o.window < item.length ? o.window + item.queries + (o.sink > 0 ? o.sink : 0) : item.length;
  const std::int64_t most = seen < item.length ? seen : item.length;
  const std::int64_t share = round_up(ceil_div(most, most_pieces_of(prompt, c.tiles, heads)), 64);
  c.piece = share > least_piece(prompt) ? share : least_piece(prompt);
  c.pieces = most > 0 ? static_cast<int>(ceil_div(most, c.piece)) : 1;
  return c;
}
static_assert(cut_of({nullptr, 131072, 1, 0}, {}, 8, 4, true).pieces == 64 && cut_of({nullptr, 4096, 4096, 0}, {}, 8, 4, true).pieces == 1);

/// No item with at most so many rows and keys has more blocks a head.
KVX_HD constexpr std::int64_t most_blocks(bool prompt, std::int64_t rows, std::int64_t longest, std::int64_t heads) {
  const std::int64_t tiles = ceil_div(rows, prompt ? prompt_rows : few_rows);
  if (tiles == 0) return 0;
  const std::int64_t cap = longest > 0 ? ceil_div(longest, least_piece(prompt)) : 1;
  const std::int64_t one = most_pieces_of(prompt, 1, heads) < cap ? most_pieces_of(prompt, 1, heads) : cap;
  const std::int64_t shared = ceil_div(prompt ? 128 : 512, heads) + tiles, many = shared < tiles * cap ? shared : tiles * cap;
  return many > one ? many : one;
}

/// No item whose keys are split has more: a prompt of many tiles is not.
KVX_HD constexpr std::int64_t most_slots(bool prompt, std::int64_t rows, std::int64_t longest, std::int64_t heads) {
  const std::int64_t blocks = heads * most_blocks(prompt, rows, longest, heads), most = prompt ? 256 : 512 + 512;
  const std::int64_t few = heads * most_pieces_of(prompt, 1, heads);
  return blocks < most ? blocks : most > few ? most : few;
}

/// Keys that the queries at positions first .. last see together: the sink, and all from the first one's window on.
KVX_HD constexpr key_places seen_places(const dense_options& o, std::int64_t first, std::int64_t last) {
  const std::int64_t end = last + 1 > 0 ? last + 1 : 0;
  if (o.window <= 0) return {{{0, 0}, {0, end}}, nullptr, 0};
  const std::int64_t sink = o.sink < end ? o.sink : end, start = first > 0 ? window_start(o, first) : 0;
  const std::int64_t begin = start > o.sink ? start : o.sink > 0 ? o.sink : 0;
  return {{{0, sink}, {begin < end ? begin : end, end}}, nullptr, 0};
}
static_assert(seen_places({.window = 4, .sink = 2}, 9, 10).size() == 2 + 5 && seen_places({}, -1, -1).size() == 0);

/// Which rows of a block see which of the keys.
struct row_mask {
  dense_options options;
  key_places places;
  std::int64_t first = 0;     ///< row of the item that is the block's first
  std::int64_t position = 0;  ///< of the item's first query
  std::int64_t last = 0;      ///< position of the block's last query
  int group = 1;

  struct tile {
    const row_mask* mask;
    std::int64_t place;
    bool hides;

    __device__ bool sees(int row, int at) const {
      if (!hides) return true;
      const std::int64_t token = mask->places.token(place + at), p = mask->position + (mask->first + row) / mask->group;
      return token <= p && (token >= window_start(mask->options, p) || token < mask->options.sink);
    }
  };

  /// Keys at [place, end), one or more. Nothing is hidden where the first query sees the last key, and the last query the first one.
  __device__ tile of(std::int64_t place, std::int64_t end) const {
    const std::int64_t a = places.token(place), b = places.token(end - 1), p = position + first / group;
    const bool later = b > p, earlier = a < window_start(options, last) && b >= options.sink;
    return {this, place, later || earlier};
  }
};

}  // namespace kvx
