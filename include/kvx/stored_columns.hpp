#pragma once
// Columns and balances of a sequence as sections of a frame: what they hold, and whether they may be used.

#include <kvx/cache_parts.hpp>
#include <kvx/codec/frame.hpp>
#include <kvx/core/digest.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/status.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/layout/zones.hpp>
#include <kvx/learned_balance.hpp>
#include <kvx/sketch/key_sketch.hpp>
#include <kvx/spec.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace kvx {

/// A composition whose columns have a name: their bytes mean the same wherever the digest is the same.
template <class Spec>
concept names_columns = reads_sketch<typename Spec::index_type> || requires {
  { Spec::index_type::columns_digest(page_shape{}) } -> std::same_as<digest>;
};

/// What columns depend on, rows and balance aside.
template <names_columns Spec>
digest columns_digest() {
  constexpr page_shape page = Spec::layout_type::shape;
  if constexpr (reads_sketch<typename Spec::index_type>) {
    constexpr key_sketch s = Spec::sketch;
    return field_digest()
        .add("kvx columns", 1)
        .add("page tokens", page.tokens)
        .add("key dim", page.key_dim)
        .add("value dim", page.value_dim)
        .add("subspace", s.subspace)
        .add("bits", s.bits)
        .add("weights", static_cast<int>(s.weights))
        .add("centre", s.centre ? 1 : 0)
        .add("balance", s.balance)
        .add("norms", s.norms ? 1 : 0)
        .add("seed", s.seed)
        .add("value bits", Spec::others.value_bits)
        .add("tail", Spec::others.tail ? 1 : 0)
        .finish();
  } else {
    return Spec::index_type::columns_digest(page);
  }
}

/// Tokens whose pages have columns in a sequence of n tokens, rounded outwards to pages.
struct column_range {
  std::int64_t first_page = 0;
  std::int64_t last_page = 0;
};
template <class Spec>
column_range columns_of(std::int64_t n) {
  constexpr std::int64_t tokens = Spec::layout_type::shape.tokens;
  const std::int64_t end = edge(Spec::zones, n, tokens) / tokens, first = Spec::zones.sink / tokens;
  return {first, end > first ? end : first};
}

/// The payload of a section of a column: the digest, then blocks (pages, heads, block bytes).
template <class Pages>
std::vector<std::byte> pack_column(const digest& name, const column& of, const column_array& from, const column_range& range,
                                   const Pages& pages) {
  std::vector<std::byte> bytes(sizeof name.bytes);
  std::memcpy(bytes.data(), name.bytes.data(), sizeof name.bytes);
  const auto block = static_cast<std::size_t>(of.block_bytes);
  for (std::int64_t page = range.first_page; page < range.last_page; ++page) {
    for (int h = 0; h < from.heads; ++h) {
      const std::byte* const at = from.at(pages[static_cast<std::size_t>(page)], h);
      bytes.insert(bytes.end(), at, at + block);
    }
  }
  return bytes;
}

/// Copies the blocks of a column to their pages: those of `to_range`, a part of what the payload holds from `first_page` on.
template <class Pages>
void unpack_column(std::span<const std::byte> payload, const column& of, const column_array& to, std::int64_t first_page,
                   const column_range& range, const Pages& pages) {
  const auto block = static_cast<std::size_t>(of.block_bytes);
  for (std::int64_t page = range.first_page; page < range.last_page; ++page) {
    for (int h = 0; h < to.heads; ++h) {
      const std::size_t at = sizeof(digest) + static_cast<std::size_t>((page - first_page) * to.heads + h) * block;
      std::memcpy(to.at(pages[static_cast<std::size_t>(page)], h), payload.data() + at, block);
    }
  }
}

/// The first bytes of a section of a balance: what it was learned from.
struct balance_front {
  std::uint32_t tokens = 0;
  std::uint32_t sink = 0;
};

/// The diagonals of one layer: front, (heads, D) floats, (heads) bytes: 1 where queries were seen.
inline std::vector<std::byte> pack_diagonals(const learning_rules& r, const balance_table& from, int layer) {
  const balance_front front{static_cast<std::uint32_t>(r.tokens), static_cast<std::uint32_t>(r.sink)};
  const auto values = static_cast<std::size_t>(r.heads) * static_cast<std::size_t>(r.dim) * sizeof(float),
             heads = static_cast<std::size_t>(r.heads);
  std::vector<std::byte> bytes(sizeof front + values + heads);
  std::memcpy(bytes.data(), &front, sizeof front);
  std::memcpy(bytes.data() + sizeof front, from.diagonals.get() + r.at(layer), values);
  std::memcpy(bytes.data() + sizeof front + values, from.seen.data() + static_cast<std::size_t>(layer) * heads, heads);
  return bytes;
}

inline bool same_front(const learning_rules& r, std::span<const std::byte> bytes) {
  balance_front front;
  if (bytes.size() < sizeof front) return false;
  std::memcpy(&front, bytes.data(), sizeof front);
  return front.tokens == r.tokens && front.sink == r.sink;
}

/// errors      mismatch: learned from other tokens, or of other heads; corrupt: numbers that no balance has
inline status unpack_diagonals(const learning_rules& r, std::span<const std::byte> bytes, balance_table& to, int layer) {
  const auto values = static_cast<std::size_t>(r.heads) * static_cast<std::size_t>(r.dim), heads = static_cast<std::size_t>(r.heads);
  if (!same_front(r, bytes) || bytes.size() != sizeof(balance_front) + values * sizeof(float) + heads)
    return {status::code::mismatch, "frame: balance"};
  float* const diagonals = to.diagonals.get() + r.at(layer);
  std::memcpy(diagonals, bytes.data() + sizeof(balance_front), values * sizeof(float));
  for (std::size_t i = 0; i < values; ++i) {
    if (!(diagonals[i] > 0) || !std::isfinite(diagonals[i])) return {status::code::corrupt, "frame: balance"};
  }
  std::uint8_t* const seen = to.seen.data() + static_cast<std::size_t>(layer) * heads;
  std::memcpy(seen, bytes.data() + sizeof(balance_front) + values * sizeof(float), heads);
  for (std::size_t h = 0; h < heads; ++h) {
    if (seen[h] > 1) return {status::code::corrupt, "frame: balance"};
  }
  return {};
}

/// The queries of one layer at the positions that are learned from: front, (positions, heads, D) bf16, (positions) bytes: 1 where seen;
/// zeros where not.
template <class Samples>
std::vector<std::byte> pack_samples(const learning_rules& r, const Samples& from, int layer) {
  const balance_front front{static_cast<std::uint32_t>(r.tokens), static_cast<std::uint32_t>(r.sink)};
  const auto values = static_cast<std::size_t>(r.heads) * static_cast<std::size_t>(r.dim) * sizeof(bf16);
  std::vector<std::byte> bytes(sizeof front + from.size() * (values + 1));
  std::memcpy(bytes.data(), &front, sizeof front);
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (from[i]->seen[static_cast<std::size_t>(layer)] != 0)
      std::memcpy(bytes.data() + sizeof front + i * values, from[i]->energies.get() + r.at(layer), values);
    bytes[sizeof front + from.size() * values + i] = std::byte{from[i]->seen[static_cast<std::size_t>(layer)]};
  }
  return bytes;
}

/// Fills the first samples from a payload that may hold more.
inline status unpack_samples(const learning_rules& r, std::span<const std::byte> bytes, std::span<const std::shared_ptr<query_sample>> to,
                             int layer) {
  const auto values = static_cast<std::size_t>(r.heads) * static_cast<std::size_t>(r.dim) * sizeof(bf16);
  if (!same_front(r, bytes)) return {status::code::mismatch, "frame: balance"};
  const std::span<const std::byte> rest = bytes.subspan(sizeof(balance_front));
  const std::size_t count = rest.size() / (values + 1);
  if (rest.size() != count * (values + 1) || count < to.size()) return {status::code::mismatch, "frame: balance"};
  for (std::size_t i = 0; i < to.size(); ++i) {
    const std::byte seen = rest[count * values + i];
    if (seen > std::byte{1}) return {status::code::corrupt, "frame: balance"};
    std::memcpy(to[i]->energies.get() + r.at(layer), rest.data() + i * values, values);
    to[i]->seen[static_cast<std::size_t>(layer)] = static_cast<std::uint8_t>(seen);
  }
  return {};
}

}  // namespace kvx
