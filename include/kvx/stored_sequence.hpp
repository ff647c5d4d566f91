#pragma once
// A frame in a store, checked against a cache that is to take its sequence: which sections hold what, and rows layer by layer.

#include <kvx/attend/rows.hpp>
#include <kvx/backend/host.hpp>
#include <kvx/cache_parts.hpp>
#include <kvx/codec/frame.hpp>
#include <kvx/codec/host/calibrated.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/digest.hpp>
#include <kvx/core/status.hpp>
#include <kvx/layout/page_table.hpp>
#include <kvx/store/store.hpp>
#include <kvx/store_options.hpp>
#include <kvx/stored_access.hpp>
#include <kvx/stored_blocks.hpp>
#include <kvx/stored_means.hpp>
#include <kvx/stored_rows.hpp>
#include <kvx/stored_sections.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace kvx {

/// The rows of a stored sequence.
///
/// what        open: everything that header and table say is checked, against themselves and against the cache. write_layer: reads, checks
///             and decodes the sections of a layer, and hands its rows to a writer, see host_writer
/// errors      a status; a layer that fails has some of its rows or none. usage_error: a codec that does not fit the cache
/// cost        open: header, table, token ids, means. write_layer: sections of a block of layers, in memory until its last layer is written
template <class Spec, store S>
class stored_sequence {
 public:
  using layout = typename Spec::layout_type;
  using codec = typename Spec::codec_type;
  using E = typename layout::element_type;

  status open(const host& exec, const cache_parts<Spec>& of, const S& from, const digest& key, const restore_options& options,
              call_site where) {
    if constexpr (!std::same_as<codec, raw>) require_calibration(of.spec.codec, where);
    sections_.divide(of, where);
    status s = from.open(key, reader_);
    if (!s.ok()) return s;
    s = read_table(header_of(of));
    if (!s.ok()) return s;
    require_range("restore: tokens", options.tokens, -1, std::int64_t{1} << 40, where);
    const auto stored = static_cast<std::int64_t>(frame_.header.tokens);
    tokens_ = options.tokens < 0 ? stored : std::min(options.tokens, stored);
    s = sections_.index(frame_, of, tokens_);
    if (!s.ok()) return s;
    loaded_.resize(sections_.blocks().size());
    s = read_ids(exec, of, options, where);
    return s.ok() ? read_means(of) : s;
  }

  /// Tokens to be restored, and the position of the first.
  std::int64_t tokens() const { return tokens_; }
  std::int64_t first_token() const { return static_cast<std::int64_t>(frame_.header.first_token); }
  const stored_sections<Spec>& sections() const { return sections_; }

  const frame_section& section(std::int64_t number) const { return frame_.sections[static_cast<std::size_t>(number)]; }

  /// The first bytes of a section, unchecked.
  status read_front(std::int64_t number, std::span<std::byte> bytes) const { return reader_.read(section(number).offset, bytes); }

  /// Reads a section and checks it.
  status read(std::uint32_t number, std::vector<std::byte>& bytes) const {
    const frame_section& s = frame_.sections[number];
    bytes.resize(static_cast<std::size_t>(s.bytes));
    const status done = reader_.read(s.offset, bytes);
    return done.ok() ? check_section(s, bytes) : done;
  }

  /// Reads sections and checks them: those beside the rows, and those of rows where asked for.
  status check(bool rows) const {
    std::vector<std::byte> bytes;
    for (std::uint32_t i = 0; i < frame_.sections.size(); ++i) {
      const section_kind kind = frame_.sections[i].kind;
      if (!rows && (kind == section_kind::rows || kind == section_kind::chunk || kind == section_kind::page)) continue;
      const status s = read(i, bytes);
      if (!s.ok()) return s;
    }
    return {};
  }

  /// Writes the rows of one layer to the pages of a sequence.
  ///
  /// tables      (groups)
  template <class Writer>
  status write_layer(const host& exec, const cache_parts<Spec>& of, int layer, std::span<const page_table> tables, Writer& writer) {
    for (std::size_t b = 0; b < loaded_.size(); ++b) {
      const stored_block& block = sections_.blocks()[b];
      const auto at = std::find(block.layers.begin(), block.layers.end(), layer);
      if (at == block.layers.end()) continue;
      if (loaded_[b].empty()) {
        const status s = load(exec, of, b, writer);
        if (!s.ok()) return s;
      }
      const auto& place = of.layer(layer);
      const auto g = static_cast<std::size_t>(place.group);
      const std::int64_t first_kept = std::max(tables[g].first_kept, sections_.first_kept()[g]);
      const page_rules& rules = of.plan.groups[g].rules;
      const std::int64_t sink = std::min(rules.pages(rules.sink) * rules.page_tokens, first_kept), last = first_token() + tokens_;
      const token_range kept[] = {{0, std::min(sink, last)}, {first_kept, last}};  // rows that have pages
      std::vector<layer_rows> rows(loaded_[b].size());
      const status s = for_each_checked(exec, std::ssize(rows), [&](std::int64_t i) {
        layer_rows& of_section = rows[static_cast<std::size_t>(i)];
        if (loaded_[b][static_cast<std::size_t>(i)].taken) return status{};
        of_section = rows_of(exec, of, block, at - block.layers.begin(), loaded_[b][static_cast<std::size_t>(i)]);
        if constexpr (Writer::side_by_side) {
          write(layer, of_section.rows, kept, tables, writer);
          of_section.decoded = {};
        }
        return status{};
      });
      if (!s.ok()) return s;
      if constexpr (!Writer::side_by_side) {
        for (const layer_rows& of_section : rows) write(layer, of_section.rows, kept, tables, writer);
      }
      if constexpr (Writer::decodes) writer.restore(block, b, at - block.layers.begin(), kept, tables);
      if (at + 1 < block.layers.end()) continue;
      loaded_[b].clear();
      if constexpr (Writer::decodes) writer.drop(b);
    }
    return {};
  }

 private:
  /// A section in memory, its entropy coding undone.
  struct loaded_section {
    frame_section of;
    row_part part = row_part::key;
    std::vector<std::byte> bytes;
    std::span<const std::byte> chunk;  // of the bytes; empty where they are rows
    opened_span<E> opened;
    bool taken = false;  ///< a chunk that the writer decodes
  };
  /// Rows of one layer of a section; `decoded` holds them where the section's bytes do not.
  struct layer_rows {
    dense_rows rows;
    std::vector<E> decoded;
  };
  status read_table(const frame_header& wanted) {
    std::vector<std::byte> front(static_cast<std::size_t>(std::min<std::uint64_t>(reader_.size(), sizeof(frame_header))));
    status s = reader_.read(0, front);
    if (!s.ok()) return s;
    frame_header header;
    s = read_frame_header(front, reader_.size(), header);
    if (s.ok()) s = expect(header, wanted);
    if (!s.ok()) return s;
    front.resize(static_cast<std::size_t>(frame_front_bytes(header.sections)));
    s = reader_.read(0, front);
    return s.ok() ? open_frame(front, reader_.size(), frame_) : s;
  }

  status read_ids(const host& exec, const cache_parts<Spec>& of, const restore_options& options, call_site where) {
    require(options.token_ids.empty() || std::cmp_greater_equal(options.token_ids.size(), tokens_),
            "restore: token_ids are those of the tokens that are restored", where);
    bool predicted = false;
    if constexpr (!std::same_as<codec, raw>) predicted = of.spec.codec.model->of().predicted();
    if (options.token_ids.empty() && !predicted) return {};
    if (sections_.token_ids() < 0) return {status::code::mismatch, "frame: it has no token ids"};
    std::vector<std::byte> bytes;
    const status s = read(static_cast<std::uint32_t>(sections_.token_ids()), bytes);
    if (!s.ok()) return s;
    std::vector<std::int32_t> ids(bytes.size() / sizeof(std::int32_t));
    if (!ids.empty()) std::memcpy(ids.data(), bytes.data(), bytes.size());
    if (!options.token_ids.empty() && !std::equal(ids.begin(), ids.begin() + tokens_, options.token_ids.begin()))
      return {status::code::mismatch, "frame: token ids"};
    if constexpr (!std::same_as<codec, raw>) {
      require_embeddings(of.spec.codec, where);
      if (predicted && !of.spec.codec.embeddings.have(ids))
        return {status::code::corrupt, "frame: a token id that the model does not have"};
      inputs_ = predicted_inputs<codec>(exec, of.spec.codec, ids);
    }
    return {};
  }

  status read_means([[maybe_unused]] const cache_parts<Spec>& of) {
    if constexpr (!std::same_as<codec, raw>) {
      std::vector<std::byte> bytes;
      for (std::size_t b = 0; b < sections_.blocks().size(); ++b) {
        for (const row_part part : {row_part::key, row_part::value}) {
          const std::int64_t number = sections_.mean(b, part);
          if (number < 0) continue;
          status s = read(static_cast<std::uint32_t>(number), bytes);
          if (s.ok()) s = means_.take(*of.spec.codec.model, sections_.blocks()[b], b, part, bytes);
          if (!s.ok()) return s;
        }
      }
    }
    return {};
  }

  template <class Writer>
  status load(const host& exec, const cache_parts<Spec>& of, std::size_t b, [[maybe_unused]] Writer& writer) {
    std::vector<loaded_section> all;
    for (const row_part part : {row_part::key, row_part::value}) {
      for (const std::uint32_t number : sections_.rows(b, part)) {
        loaded_section& loaded = all.emplace_back();
        loaded.of = frame_.sections[number];
        loaded.part = part;
        status s = read(number, loaded.bytes);
        if (s.ok() && loaded.of.kind == section_kind::chunk) loaded.chunk = loaded.bytes;
        if (s.ok() && loaded.of.kind == section_kind::page) s = chunk_of_page(loaded.bytes, loaded.chunk);
        if (!s.ok()) return s;
      }
    }
    if constexpr (Writer::decodes) {
      const status s = hand_over(b, all, writer);
      if (!s.ok()) return s;
    }
    if constexpr (!std::same_as<codec, raw>) {
      const host alone = limited(exec, 1);
      const status s = for_each_checked(exec, std::ssize(all), [&](std::int64_t i) {
        loaded_section& l = all[static_cast<std::size_t>(i)];
        if (l.of.kind == section_kind::rows || l.taken) return status{};
        const span_chunk chunk{static_cast<std::size_t>(sections_.blocks()[b].span),
                               l.part,
                               first_token() + l.of.first_token,
                               l.of.tokens,
                               inputs_.of(l.part, l.of.first_token),
                               means_.of(b, l.part)};
        return open_span(alone, of.spec.codec, chunk, l.chunk, l.opened);
      });
      if (!s.ok()) return s;
    }
    loaded_[b] = std::move(all);
    return {};
  }

  /// Lets the writer decode the chunks of a block, where it can.
  template <class Writer>
  status hand_over(std::size_t b, std::vector<loaded_section>& all, Writer& writer) const {
    if (!writer.takes(sections_.blocks()[b])) return {};
    std::vector<stored_chunk> chunks;
    for (loaded_section& l : all) {
      l.taken = l.of.kind != section_kind::rows;
      if (l.taken)
        chunks.push_back({{b, l.part, first_token() + l.of.first_token, l.of.tokens},
                          l.chunk,
                          inputs_.of(l.part, l.of.first_token),
                          means_.of(b, l.part)});
    }
    const status s = writer.open(sections_.blocks()[b], b, chunks);
    for (loaded_section& l : all) {
      if (l.taken) l.bytes = {};
    }
    return s;
  }

  /// i: the layer's number in its block.
  layer_rows rows_of(const host& exec, const cache_parts<Spec>& of, const stored_block& block, std::int64_t i,
                     const loaded_section& from) const {
    const std::int64_t dim = from.part == row_part::key ? layout::shape.key_dim : layout::shape.value_dim, width = block.heads * dim;
    layer_rows result;
    result.rows = {from.part,         first_token() + from.of.first_token,
                   from.of.tokens,    block.first_head,
                   block.heads,       from.bytes.data() + i * width * static_cast<std::int64_t>(sizeof(E)),
                   block.rows() * dim};
    if constexpr (!std::same_as<codec, raw>) {
      if (from.of.kind != section_kind::rows) {
        result.decoded.resize(static_cast<std::size_t>(from.of.tokens * width));
        restore_layer(limited(exec, 1), of.spec.codec, from.opened, i, tensor_view<E, 2>(result.decoded.data(), from.of.tokens, width));
        result.rows.rows = reinterpret_cast<const std::byte*>(result.decoded.data());
        result.rows.pitch = width;
      }
    }
    return result;
  }

  template <class Writer>
  static void write(int layer, const dense_rows& rows, std::span<const token_range> kept, std::span<const page_table> tables,
                    Writer& writer) {
    for (const token_range& range : kept) {
      const std::int64_t low = std::max(range.begin, rows.first), high = std::min(range.end, rows.first + rows.count);
      if (low >= high) continue;
      dense_rows some = rows;
      some.first = low;
      some.count = high - low;
      some.rows += (low - rows.first) * rows.pitch * static_cast<std::int64_t>(sizeof(E));
      writer.write(layer, some, tables);
    }
  }

  typename S::reader reader_;
  frame_view frame_;
  std::int64_t tokens_ = 0;
  stored_sections<Spec> sections_;
  predicted_inputs<codec> inputs_;
  frame_means<codec> means_;
  std::vector<std::vector<loaded_section>> loaded_;  // (blocks)
};

}  // namespace kvx
