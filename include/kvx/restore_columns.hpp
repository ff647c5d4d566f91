#pragma once
// Balances and columns from the sections of a frame to a sequence that is being restored.

#include <kvx/backend/host.hpp>
#include <kvx/cache_parts.hpp>
#include <kvx/codec/frame.hpp>
#include <kvx/core/digest.hpp>
#include <kvx/core/status.hpp>
#include <kvx/learned_balance.hpp>
#include <kvx/store/store.hpp>
#include <kvx/stored_access.hpp>
#include <kvx/stored_columns.hpp>
#include <kvx/stored_sequence.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

namespace kvx {

/// Reads what a stored sequence has learned.
///
/// what        queries fill the samples of `entry`, which are those of the positions that are restored; diagonals become `table`, where the
///             sequence is long enough to have any and the frame has those of all retrieving layers. What was learned by other rules is
///             left out: the balance is then learned from the keys that are restored, and 1 without queries
/// errors      of reading; corrupt
template <class Backend, class Spec, store S>
status read_balance(const Backend& exec, const stored_sequence<Spec, S>& from, const cache_parts<Spec>& of, learning_entry& entry,
                    std::shared_ptr<balance_table>& table) {
  const learning_rules& rules = of.balances.rules();
  if (!of.balances.on() || from.first_token() > 0) return {};
  const bool fixed = from.tokens() >= rules.tokens;
  const host here = coding_threads(exec);
  std::shared_ptr<balance_table> diagonals = fixed ? make_balance_table(here, rules) : nullptr;
  std::vector<std::shared_ptr<query_sample>> samples = make_samples(here, rules, std::ssize(entry.samples));
  bool all = fixed;
  std::vector<std::byte> bytes;
  for (int l = 0; l < of.geometry.layers; ++l) {
    if (!of.layer(l).retrieves) continue;
    const auto& sides = from.sections().sides(l);
    if (sides.samples >= 0) {
      status s = from.read(static_cast<std::uint32_t>(sides.samples), bytes);
      if (s.ok()) s = unpack_samples(rules, bytes, samples, of.layer(l).ordinal);
      if (!s.ok() && s != status::code::mismatch) return s;
    }
    all = all && sides.diagonals >= 0;
    if (!all) continue;
    status s = from.read(static_cast<std::uint32_t>(sides.diagonals), bytes);
    if (s.ok()) s = unpack_diagonals(rules, bytes, *diagonals, of.layer(l).ordinal);
    if (!s.ok() && s != status::code::mismatch) return s;
    all = s.ok();
  }
  take_samples(exec, rules, std::move(samples), entry);
  if (all) table = take_table(exec, rules, std::move(diagonals));
  return {};
}

/// Whether the frame has the columns of all retrieving layers for a sequence of n tokens, of this composition.
///
/// errors      of reading; corrupt: columns of another size than their pages
template <class Spec, store S>
status has_columns(const stored_sequence<Spec, S>& from, const cache_parts<Spec>& of, std::int64_t n, bool& has) {
  has = false;
  if constexpr (names_columns<Spec>) {
    constexpr std::int64_t tokens = Spec::layout_type::shape.tokens;
    const column_range needed = columns_of<Spec>(n);
    if (from.first_token() > 0 || needed.first_page >= needed.last_page) return {};
    const digest name = columns_digest<Spec>();
    std::vector<std::byte> front(sizeof name.bytes);
    for (int l = 0; l < of.geometry.layers; ++l) {
      for (std::size_t c = 0; c < cache_parts<Spec>::columns.size() && of.layer(l).retrieves; ++c) {
        const std::int64_t block = cache_parts<Spec>::columns[c].block_bytes, number = from.sections().sides(l).column[c];
        if (block == 0) continue;
        if (number < 0) return {};
        const frame_section& s = from.section(number);
        if (s.bytes < front.size()) return {status::code::corrupt, "frame: column"};
        const status read = from.read_front(number, front);
        if (!read.ok()) return read;
        if (std::memcmp(front.data(), name.bytes.data(), front.size()) != 0) return {};
        const std::int64_t pages = s.tokens / tokens;
        if (s.first_token != needed.first_page * tokens || pages < needed.last_page - needed.first_page) return {};
        if (s.tokens % tokens != 0 || std::cmp_not_equal(s.bytes - front.size(), pages * of.geometry.kv_heads * block))
          return {status::code::corrupt, "frame: column"};
      }
    }
    has = true;
  }
  return {};
}

/// The stored columns of one layer to its pages, where has_columns says so.
template <class Spec, store S, class Writer>
status read_columns(const stored_sequence<Spec, S>& from, const cache_parts<Spec>& of, Writer& writer, int layer, std::int64_t n,
                    std::span<const std::int32_t> pages) {
  const auto& place = of.layer(layer);
  std::vector<std::byte> bytes;
  for (std::size_t c = 0; c != cache_parts<Spec>::columns.size() && place.retrieves; ++c) {
    if (cache_parts<Spec>::columns[c].block_bytes == 0) continue;
    const status s = from.read(static_cast<std::uint32_t>(from.sections().sides(layer).column[c]), bytes);
    if (!s.ok()) return s;
    writer.column(layer, c, bytes, columns_of<Spec>(n), pages);
  }
  return {};
}

}  // namespace kvx
