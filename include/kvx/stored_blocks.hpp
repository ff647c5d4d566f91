#pragma once
// How the rows of a sequence are divided when they are stored: blocks of layers and heads, and in each ranges of tokens.

#include <kvx/codec/calibrated.hpp>
#include <kvx/codec/frame.hpp>
#include <kvx/codec/raw.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/geometry.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

namespace kvx {

/// Layers, and KV heads of each, whose rows are stored and restored together.
///
/// layers      ascending; all attend alike, so that their rows go back equally far
/// span        of the calibration; -1: rows are stored as they are
struct stored_block {
  std::vector<std::int32_t> layers;
  std::int32_t first_head = 0;
  std::int32_t heads = 0;
  std::int32_t span = -1;

  /// A section of these rows in a frame.
  frame_section section(section_kind kind, row_part part, std::int64_t first_token, std::int64_t tokens) const {
    frame_section s;
    s.kind = kind;
    s.part = part == row_part::key ? 1 : 2;
    s.first_layer = static_cast<std::uint16_t>(layers.front());
    s.layers = static_cast<std::uint16_t>(layers.back() - layers.front() + 1);
    s.first_head = static_cast<std::uint16_t>(first_head);
    s.heads = static_cast<std::uint16_t>(heads);
    s.first_token = static_cast<std::uint32_t>(first_token);
    s.tokens = static_cast<std::uint32_t>(tokens);
    return s;
  }
  /// Whether a section is of this block. A layer and a head belong to one block alone.
  bool owns(const frame_section& s) const {
    return s.first_layer == layers.front() && s.layers == layers.back() - layers.front() + 1 && s.first_head == first_head &&
           s.heads == heads;
  }
  std::int64_t rows() const { return std::ssize(layers) * heads; }
};

/// Rows as they are: a block a layer.
inline std::vector<stored_block> blocks_of(const geometry& g, page_shape, const raw&, call_site) {
  std::vector<stored_block> blocks(static_cast<std::size_t>(g.layers));
  for (std::int32_t l = 0; l < g.layers; ++l) blocks[static_cast<std::size_t>(l)] = {{l}, 0, g.kv_heads, -1};
  return blocks;
}

/// A block for every span of the calibration, in the order of their first layers; layers that no span has are stored as they are.
///
/// errors      usage_error: a calibration of another shape, a span whose layers keep different tokens, layers that spans have some heads of
template <class Chain>
std::vector<stored_block> blocks_of(const geometry& g, page_shape shape, const calibrated<Chain>& codec, call_site where) {
  const calibration& c = codec.model->of();
  require_range("layers of the calibration", c.shape.layers, g.layers, g.layers, where);
  require_range("KV heads of the calibration", c.shape.kv_heads, g.kv_heads, g.kv_heads, where);
  require_range("key dim of the calibration", c.shape.key_dim, shape.key_dim, shape.key_dim, where);
  require_range("value dim of the calibration", c.shape.value_dim, shape.value_dim, shape.value_dim, where);
  std::vector<stored_block> blocks;
  const std::int64_t H = g.kv_heads;
  std::vector<bool> covered(static_cast<std::size_t>(g.layers * H));  // (layers, KV heads)
  for (std::size_t s = 0; s < c.spans.size(); ++s) {
    const feature_span& span = c.spans[s];
    const auto window = [&](std::int32_t l) {
      const layer_kind kind = g.kind(l);
      return kind.sees == layer_kind::attention::window ? std::pair(kind.tokens, kind.sink) : std::pair<std::int64_t, std::int64_t>();
    };
    for (const std::int32_t l : span.layers) {
      require(window(l) == window(span.layers.front()), "codec: a span of the calibration has layers of different windows", where);
      for (std::int32_t h = span.first_head; h < span.first_head + span.heads; ++h) {
        const auto at = static_cast<std::size_t>(l * H + h);
        require(!covered[at], "codec: spans of the calibration have a layer's head twice", where);
        covered[at] = true;
      }
    }
    blocks.push_back({span.layers, span.first_head, span.heads, static_cast<std::int32_t>(s)});
  }
  for (std::int32_t l = 0; l < g.layers; ++l) {
    const auto heads = std::count(covered.begin() + l * H, covered.begin() + (l + 1) * H, true);
    require(heads == 0 || heads == H, "codec: spans of the calibration have a layer's heads in part", where);
    if (heads == 0) blocks.push_back({{l}, 0, g.kv_heads, -1});
  }
  std::sort(blocks.begin(), blocks.end(), [](const stored_block& a, const stored_block& b) {
    return std::tuple(a.layers.front(), a.first_head) < std::tuple(b.layers.front(), b.first_head);
  });
  return blocks;
}

/// Consecutive tokens that make one section.
struct stored_range {
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool coded = false;
};

/// Most tokens of a section that a reader accepts: what it allocates for a chunk stays small.
inline constexpr std::int64_t most_section_tokens = 1024;

/// One section of rows that is to be made.
struct stored_section {
  frame_section of;
  std::size_t block = 0;
  row_part part = row_part::key;
  stored_range range;
};

/// A chunk of a block of layers: where its tokens stand.
struct chunk_place {
  std::size_t block = 0;
  row_part part = row_part::key;
  std::int64_t position = 0;
  std::int64_t tokens = 0;
};

/// Divides the tokens [first, last).
///
/// what        the tokens before `sinks` and those from `newest` on stay as they are, the others are coded; pieces of equal length,
///             at most `chunk` tokens, of which the last may be shorter
inline void add_ranges(std::int64_t first, std::int64_t last, bool codes, std::int64_t sinks, std::int64_t newest, std::int64_t chunk,
                       std::vector<stored_range>& ranges) {
  const auto piece = [&](std::int64_t from, std::int64_t to, bool coded) {
    from = std::max(from, first);
    to = std::min(to, last);
    if (from >= to) return;
    const std::int64_t each = ceil_div(to - from, ceil_div(to - from, chunk));
    for (std::int64_t at = from; at < to; at += each) ranges.push_back({at, std::min(each, to - at), coded});
  };
  if (!codes) return piece(first, last, false);
  newest = std::max(newest, sinks);
  piece(first, sinks, false);
  piece(sinks, newest, true);
  piece(newest, last, false);
}

/// Newest tokens that stay as they are: few of a short sequence, of which they would be a large part.
///
/// source      ours, measured: 32 with finer coding of the rest beat 128 at 2,048 tokens
constexpr std::int64_t default_newest(std::int64_t tokens) { return tokens <= 4096 ? 32 : tokens <= 8192 ? 64 : 128; }

}  // namespace kvx
