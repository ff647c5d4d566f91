#pragma once
// What the table of a frame holds for a cache: sections of rows by block, means, token ids, balances, columns; whether rows are missing.

#include <kvx/cache_parts.hpp>
#include <kvx/codec/chain.hpp>
#include <kvx/codec/frame.hpp>
#include <kvx/codec/host/page.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/status.hpp>
#include <kvx/layout/page_table.hpp>
#include <kvx/stored_blocks.hpp>
#include <kvx/stored_columns.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace kvx {

/// What a status says where rows that a length needs are not stored, since windows have left them behind: another length may do.
inline constexpr char rows_are_missing[] = "frame: rows of a layer are missing";

/// Sections by what they are for. Nothing of their bytes is read.
///
/// errors      mismatch: rows that the cache needs are missing; corrupt: sections that overlap, have another size than their rows, or are
///             of layers and heads that no block has
template <class Spec>
class stored_sections {
 public:
  using layout = typename Spec::layout_type;
  using E = typename layout::element_type;
  static constexpr std::size_t columns = cache_parts<Spec>::columns.size();
  /// Numbers of sections of one layer; -1 where there is none.
  struct layer_sides {
    std::int64_t diagonals = -1;
    std::int64_t samples = -1;
    std::array<std::int64_t, columns> column = [] {
      std::array<std::int64_t, columns> none{};
      none.fill(-1);
      return none;
    }();
  };

  /// errors      usage_error: a codec that does not fit the cache
  void divide(const cache_parts<Spec>& of, call_site where) { blocks_ = blocks_of(of.geometry, layout::shape, of.spec.codec, where); }

  /// Looks through the table for the first `tokens` tokens of the frame.
  status index(const frame_view& frame, const cache_parts<Spec>& of, std::int64_t tokens) {
    rows_.assign(blocks_.size(), {});
    means_.assign(blocks_.size(), {-1, -1});
    sides_.assign(static_cast<std::size_t>(of.geometry.layers), {});
    for (std::size_t i = 0; i < frame.sections.size(); ++i) {
      const status s = place(frame, of, i);
      if (!s.ok()) return s;
    }
    return find_first_kept(frame, of, tokens);
  }

  std::span<const stored_block> blocks() const { return blocks_; }

  /// Numbers of the sections of rows or chunks that are needed, by their tokens.
  std::span<const std::uint32_t> rows(std::size_t block, row_part part) const { return rows_[block][static_cast<std::size_t>(part)]; }
  /// The number of the section of a block's mean; -1: the calibration's holds.
  std::int64_t mean(std::size_t block, row_part part) const { return means_[block][static_cast<std::size_t>(part)]; }
  std::int64_t token_ids() const { return token_ids_; }
  const layer_sides& sides(int layer) const { return sides_[static_cast<std::size_t>(layer)]; }

  /// (groups): rows before these tokens are not there, the sink aside; see advance. Of a frame that begins with its sequence.
  std::span<const std::int64_t> first_kept() const { return first_kept_; }

 private:
  static status corrupt(const char* what) { return {status::code::corrupt, what}; }

  status place(const frame_view& frame, const cache_parts<Spec>& of, std::size_t i) {
    const frame_section& s = frame.sections[i];
    const auto number = static_cast<std::int64_t>(i);
    const bool one_layer = s.layers == 1 && s.first_head == 0 && s.heads == of.geometry.kv_heads;
    switch (s.kind) {
      case section_kind::token_ids:
        if (token_ids_ >= 0 || s.bytes != frame.header.tokens * sizeof(std::int32_t)) return corrupt("frame: token ids");
        token_ids_ = number;
        return {};
      case section_kind::rows:
      case section_kind::chunk:
      case section_kind::page: return place_rows(frame, i);
      case section_kind::mean: return place_mean(s, number);
      case section_kind::balance:
        if (!one_layer || (s.part != 1 && s.part != 2)) return corrupt("frame: balance");
        (s.part == 1 ? sides_[s.first_layer].diagonals : sides_[s.first_layer].samples) = number;
        return {};
      case section_kind::column:
        if (!one_layer) return corrupt("frame: column");
        if (std::cmp_less(s.part, columns)) sides_[s.first_layer].column[s.part] = number;
        return {};
      default: return {};
    }
  }

  /// Finds the block and part of a section of one.
  status find_block(const frame_section& s, std::vector<stored_block>::const_iterator& block) const {
    block = std::find_if(blocks_.begin(), blocks_.end(), [&](const stored_block& b) { return b.owns(s); });
    if (block == blocks_.end()) return {status::code::mismatch, "frame: layers and heads of a section"};
    if (s.part != 1 && s.part != 2) return corrupt("frame: part of a section");
    return {};
  }

  status place_mean(const frame_section& s, std::int64_t number) {
    std::vector<stored_block>::const_iterator block;
    const status found = find_block(s, block);
    if (!found.ok()) return found;
    const std::int64_t dim = s.part == 1 ? layout::shape.key_dim : layout::shape.value_dim;
    std::int64_t& at = means_[static_cast<std::size_t>(block - blocks_.begin())][s.part == 1 ? 0 : 1];
    if (block->span < 0 || at >= 0 || s.bytes != static_cast<std::uint64_t>(block->rows() * dim) * sizeof(half))
      return corrupt("frame: a mean");
    at = number;
    return {};
  }

  status place_rows(const frame_view& frame, std::size_t i) {
    const frame_section& s = frame.sections[i];
    std::vector<stored_block>::const_iterator block;
    const status found = find_block(s, block);
    if (!found.ok()) return found;
    if (s.tokens < 1 || s.tokens > most_section_tokens) return corrupt("frame: tokens of a section");
    if (s.kind != section_kind::rows && block->span < 0) return corrupt("frame: a chunk of layers that no span has");
    const std::int64_t dim = s.part == 1 ? layout::shape.key_dim : layout::shape.value_dim;
    const std::int64_t bound = chunk_bound<E>(s.tokens, block->rows() * dim), front = sizeof(chunk_header);
    const auto bytes = static_cast<std::int64_t>(s.bytes);
    const std::int64_t before = s.kind == section_kind::page ? page_front_bytes : 0;
    if (s.kind == section_kind::rows ? bytes != bound - front : bytes < before + front || bytes > before + bound)
      return corrupt("frame: bytes of a section");
    auto& all = rows_[static_cast<std::size_t>(block - blocks_.begin())][s.part == 1 ? 0 : 1];
    if (!all.empty()) {
      const frame_section& last = frame.sections[all.back()];
      if (s.first_token < last.first_token + last.tokens) return corrupt("frame: sections that overlap");
    }
    all.push_back(static_cast<std::uint32_t>(i));
    return {};
  }

  /// The first token from which on rows are there to the end, of a block and part; `tokens` where none are.
  static std::int64_t first_of_last_run(const frame_view& frame, std::span<const std::uint32_t> sections, std::int64_t tokens) {
    std::int64_t first = tokens;
    for (auto at = sections.rbegin(); at != sections.rend(); ++at) {
      const frame_section& s = frame.sections[*at];
      if (s.first_token >= first) continue;
      if (std::int64_t{s.first_token} + s.tokens < first) break;
      first = s.first_token;
    }
    return first;
  }
  static std::int64_t end_of_first_run(const frame_view& frame, std::span<const std::uint32_t> sections) {
    std::int64_t end = 0;
    for (const std::uint32_t number : sections) {
      if (frame.sections[number].first_token == end) end += frame.sections[number].tokens;
    }
    return end;
  }

  /// Finds what is there of each group, and leaves out the sections that hold nothing which is kept.
  status find_first_kept(const frame_view& frame, const cache_parts<Spec>& of, std::int64_t tokens) {
    const auto position = static_cast<std::int64_t>(frame.header.first_token);
    first_kept_.assign(of.plan.groups.size(), 0);
    std::vector<std::int64_t> group_of_block;
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      const auto g = static_cast<std::size_t>(of.layer(blocks_[b].layers.front()).group);
      const page_rules& rules = of.plan.groups[g].rules;
      group_of_block.push_back(static_cast<std::int64_t>(g));
      for (const auto& sections : rows_[b]) {
        const std::int64_t first = position + first_of_last_run(frame, sections, tokens), end = position + tokens;
        if (first <= position) continue;  // all of it
        const std::int64_t kept = std::max(round_up(first, rules.page_tokens), round_down(rules.first_needed(end), rules.page_tokens));
        if (rules.window == 0 || kept > rules.first_seen(end)) return {status::code::mismatch, rows_are_missing};
        if (position > 0 && (!rules.grows || kept > round_down(rules.first_needed(end), rules.page_tokens)))
          return {status::code::mismatch, rows_are_missing};
        if (position < rules.sink && position + end_of_first_run(frame, sections) < std::min(rules.sink, end))
          return {status::code::mismatch, "frame: rows of a window layer's sink are missing"};
        first_kept_[g] = std::max(first_kept_[g], kept);
      }
      if (rules.window > 0 && rules.grows)
        first_kept_[g] = std::max(first_kept_[g], round_down(rules.first_needed(position + tokens), rules.page_tokens));
    }
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      const auto g = static_cast<std::size_t>(group_of_block[b]);
      const page_rules& rules = of.plan.groups[g].rules;
      const std::int64_t sink = rules.pages(rules.sink) * rules.page_tokens, kept = first_kept_[g];
      for (auto& sections : rows_[b]) {
        std::erase_if(sections, [&](std::uint32_t number) {
          const std::int64_t first = position + frame.sections[number].first_token, last = first + frame.sections[number].tokens;
          return first >= position + tokens || (first >= sink && last <= kept);
        });
      }
    }
    return {};
  }

  std::vector<stored_block> blocks_;
  std::vector<std::array<std::vector<std::uint32_t>, 2>> rows_;  // (blocks, K and V)
  std::vector<std::array<std::int64_t, 2>> means_;               // (blocks, K and V)
  std::int64_t token_ids_ = -1;
  std::vector<layer_sides> sides_;  // (layers)
  std::vector<std::int64_t> first_kept_;
};

}  // namespace kvx
