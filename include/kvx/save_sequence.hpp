#pragma once
// A sequence of a cache to the bytes of a frame.

#include <kvx/backend/host.hpp>
#include <kvx/cache_parts.hpp>
#include <kvx/codec/frame.hpp>
#include <kvx/codec/host/calibrated.hpp>
#include <kvx/codec/host/text_mean.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/status.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/layout/sequence_book.hpp>
#include <kvx/store_options.hpp>
#include <kvx/stored_blocks.hpp>
#include <kvx/stored_columns.hpp>
#include <kvx/stored_means.hpp>
#include <kvx/stored_rows.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace kvx {

/// The frame of a sequence, or of a range of it.
///
/// what        token ids, means, rows block by block, balances, columns; see docs/storing.md
/// errors      usage_error: options out of their limits, a range that window layers have left behind, a codec that does not fit the cache.
///             unfit: bytes of a section that cannot be made
/// exactness   for any number of threads the same bytes
/// reader      see host_reader: rows, columns and what was learned, as its backend has them
/// cost        one read of the rows, two where their mean is kept; the codec's work, chunks side by side; memory for the frame and a few
///             chunks a worker
template <class Spec, class Reader>
class sequence_saver {
 public:
  using layout = typename Spec::layout_type;
  using codec = typename Spec::codec_type;
  using E = typename layout::element_type;

  sequence_saver(const host& exec, const cache_parts<Spec>& of, const sequence_book::slot& s, Reader reader, const save_options& options,
                 call_site where)
      : exec_(exec), of_(of), slot_(s), reader_(std::move(reader)), options_(options), first_(options.first) {
    require(s.whole(), "save: the sequence is being restored: decode all of its layers first", where);
    require_range("save: first", options.first, 0, s.length, where);
    require_range("save: tokens", options.tokens, -1, s.length - options.first, where);
    last_ = options.tokens < 0 ? s.length : options.first + options.tokens;
    require_range("save: sinks", options.sinks, 0, 1 << 20, where);
    require_range("save: newest", options.newest, -1, 1 << 20, where);
    require_range("save: chunk", options.chunk, 1, most_section_tokens, where);
    require(options.fixed_ratio == 0 || (options.fixed_ratio >= 1 && options.fixed_ratio < 1e6),
            "save: fixed_ratio is 0, or from 1 to a million", where);
    require(options.fixed_ratio == 0 || has_step<codec>, "save: fixed_ratio: only chunks of a codec with a step fit a given size", where);
    require_range("save: own_mean_from", options.own_mean_from, 1, std::numeric_limits<std::int64_t>::max(), where);
    require(options.token_ids.empty() || std::cmp_equal(options.token_ids.size(), last_ - first_),
            "save: token_ids are those of the tokens that are saved", where);
    if constexpr (!layout::owns_rows) {
      for (const auto& layer : of.layers) require(layer.bound, "save: bind the rows of every layer first", where);
      require(std::cmp_greater_equal(options.pages.size(), ceil_div(last_, layout::shape.tokens)),
              "save: pages is the caller's page table of the sequence", where);
    }
    if constexpr (!std::same_as<codec, raw>) {
      require_calibration(of.spec.codec, where);
      const calibration& c = of.spec.codec.model->of();
      require(!c.predicted() || std::cmp_equal(options.token_ids.size(), last_ - first_),
              "save: the calibration predicts rows from tokens: token_ids are needed", where);
      require_embeddings(of.spec.codec, where);
      require(!c.predicted() || of.spec.codec.embeddings.have(options.token_ids), "save: token_ids: an id that the model does not have",
              where);
    }
    blocks_ = blocks_of(of.geometry, layout::shape, of.spec.codec, where);
    plan_rows(where);
    plan_means();
    plan_sides(where);
    const std::int64_t sections = std::ssize(sections_) + std::ssize(means_) + std::ssize(sides_) + (options.token_ids.empty() ? 0 : 1);
    require_range("save: sections, which larger chunks make fewer,", sections, 0, most_sections, where);
  }

  /// All bytes; a status where the codec cannot make a section.
  status make(std::vector<std::byte>& frame) {
    const std::size_t ids = options_.token_ids.empty() ? 0 : 1;
    frame_header header = header_of(of_);
    header.tokens = static_cast<std::uint64_t>(last_ - first_);
    header.first_token = static_cast<std::uint64_t>(first_);
    frame_writer writer(header, static_cast<std::uint32_t>(ids + means_.size() + sections_.size() + sides_.size()));
    std::int64_t plain = 0;
    for (const stored_section& s : sections_) plain += s.range.coded ? 0 : s.range.count * features_of(s);
    writer.reserve(static_cast<std::uint64_t>(plain) * sizeof(E) + options_.token_ids.size_bytes());
    if (ids > 0) {
      frame_section s;
      s.kind = section_kind::token_ids;
      s.tokens = static_cast<std::uint32_t>(last_ - first_);
      writer.add(s, std::as_bytes(options_.token_ids));
    }
    const predicted_inputs<codec> inputs(exec_, of_.spec.codec, options_.token_ids);
    const status found = add_means(inputs, writer);
    if (!found.ok()) return found;
    const std::size_t together = at_once();
    for (std::size_t first = 0; first < sections_.size(); first += together) {
      const std::size_t count = std::min(together, sections_.size() - first);
      std::vector<std::vector<std::byte>> bytes(count);
      const status fetched =
          reader_.fetch(blocks_, std::span(sections_).subspan(first, count), inputs, own_means_, first_, step(), options_.fixed_ratio == 0);
      if (!fetched.ok()) return fetched;
      const status coded = for_each_checked(exec_, static_cast<std::int64_t>(count), [&](std::int64_t i) {
        const auto number = static_cast<std::size_t>(i);
        return encode(number, sections_[first + number], inputs, bytes[number]);
      });
      if (!coded.ok()) return coded;
      for (std::size_t i = 0; i < count; ++i) writer.add(sections_[first + i].of, bytes[i]);
    }
    for (const side& s : sides_) writer.add(s.of, pack(s));
    frame = writer.finish();
    return {};
  }

 private:
  /// A section beside the rows: of a balance (column < 0) or a column.
  struct side {
    frame_section of;
    int layer = 0;
    int column = -1;
  };

  /// The mean of a block's coded rows, which sections [first, end) are of.
  struct mean_section {
    frame_section of;
    std::size_t block = 0;
    row_part part = row_part::key;
    std::size_t first = 0, end = 0;
  };

  std::size_t at_once() const { return static_cast<std::size_t>(worker_count(exec_)) * 4; }
  const page_rules& rules_of(std::int32_t layer) const { return of_.plan.groups[static_cast<std::size_t>(of_.layer(layer).group)].rules; }
  const page_table& table_of(std::int32_t layer) const { return slot_.tables[static_cast<std::size_t>(of_.layer(layer).group)]; }

  int step() const {
    if constexpr (std::same_as<codec, raw>) {
      return 0;
    } else {
      return options_.log2_step.value_or(of_.spec.codec.log2_step);
    }
  }
  std::int64_t page_bytes_of(std::size_t row_bytes) const {
    return round_down(static_cast<std::int64_t>(static_cast<double>(row_bytes) / options_.fixed_ratio), 8);
  }
  std::int64_t features_of(const stored_section& s) const {
    return blocks_[s.block].rows() * (s.part == row_part::key ? layout::shape.key_dim : layout::shape.value_dim);
  }

  void plan_rows(call_site where) {
    const std::int64_t newest = options_.newest < 0 ? default_newest(last_ - first_) : options_.newest;
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      const page_rules& rules = rules_of(blocks_[b].layers.front());
      const page_table& table = table_of(blocks_[b].layers.front());
      const std::int64_t seen = rules.first_seen(last_);
      require(last_ <= rules.sink || table.first_kept <= seen, "save: a window layer has freed rows that a sequence of this length needs",
              where);
      // A slab keeps its rows, and any length can be cut to; pages keep what `rollback` promises.
      const std::int64_t needed = rules.grows ? round_down(rules.first_needed(last_), rules.page_tokens) : 0;
      const std::int64_t kept = std::max(table.first_kept, needed);
      require(first_ == 0 || kept <= std::max(first_, needed),
              "save: a window layer has freed rows that a range needs which continues a sequence: save from token 0", where);
      std::vector<stored_range> ranges;
      const auto add = [&](std::int64_t from, std::int64_t to) {
        add_ranges(std::max(from, first_), std::min(to, last_), blocks_[b].span >= 0, options_.sinks, last_ - newest, options_.chunk,
                   ranges);
      };
      const std::int64_t sink = rules.pages(rules.sink) * rules.page_tokens;  // pages are restored as they are
      if (sink < kept) {
        add(0, sink);
        add(kept, last_);
      } else {
        add(0, last_);
      }
      if constexpr (!layout::owns_rows) {
        constexpr std::int64_t P = layout::shape.tokens;
        for (const stored_range& r : ranges) {
          for (std::int64_t page = r.first / P; page <= (r.first + r.count - 1) / P; ++page)
            require(options_.pages[static_cast<std::size_t>(page)] >= 0, "save: a page of rows that are saved is negative in pages", where);
        }
      }
      for (const row_part part : {row_part::key, row_part::value}) {
        for (const stored_range& r : ranges) {
          const section_kind kind = r.coded ? section_kind::chunk : section_kind::rows;
          sections_.push_back({blocks_[b].section(kind, part, r.first - first_, r.count), b, part, r});
        }
      }
    }
  }

  /// Which blocks code so many rows that their mean is worth its bytes.
  void plan_means() {
    if constexpr (has_step<codec>) {
      if (options_.fixed_ratio > 0) return;  // pages are decoded alone
      for (std::size_t first = 0, end = 0; first < sections_.size(); first = end) {
        const stored_section& s = sections_[first];
        std::int64_t coded = 0;
        for (; end < sections_.size() && sections_[end].block == s.block && sections_[end].part == s.part; ++end)
          coded += sections_[end].range.coded ? sections_[end].range.count : 0;
        if (coded < options_.own_mean_from) continue;
        const std::int64_t from = s.range.first, last = sections_[end - 1].range.first + sections_[end - 1].range.count;
        means_.push_back({blocks_[s.block].section(section_kind::mean, s.part, from - first_, last - from), s.block, s.part, first, end});
      }
    }
  }

  /// Finds the means, which chunks are then coded by.
  status add_means([[maybe_unused]] const predicted_inputs<codec>& inputs, [[maybe_unused]] frame_writer& writer) {
    if constexpr (has_step<codec>) {
      const calibrated_model& model = *of_.spec.codec.model;
      for (const mean_section& m : means_) {
        text_sums all;
        for (std::size_t first = m.first; first < m.end; first += at_once()) {
          const std::span<const stored_section> lot = std::span(sections_).subspan(first, std::min(at_once(), m.end - first));
          std::vector<text_sums> of_section(lot.size());
          const status summed = add_up(lot, inputs, of_section);
          if (!summed.ok()) return summed;
          for (const text_sums& sums : of_section) all.add(sums);
        }
        const std::vector<half> mean = text_mean(model, static_cast<std::size_t>(blocks_[m.block].span), m.part, all);
        const auto bytes = std::as_bytes(std::span(mean));
        (void)own_means_.take(model, blocks_[m.block], m.block, m.part, bytes);
        writer.add(m.of, bytes);
      }
    }
    return {};
  }
  /// The sums of the coded sections among some of one block and part, by the device where it makes their chunks.
  status add_up(std::span<const stored_section> lot, const predicted_inputs<codec>& inputs, std::span<text_sums> sums) {
    const calibrated_model& model = *of_.spec.codec.model;
    const status fetched = reader_.sum(blocks_, lot, sums);
    if (!fetched.ok()) return fetched;
    return for_each_checked(exec_, std::ssize(lot), [&](std::int64_t i) {
      const auto number = static_cast<std::size_t>(i);
      const stored_section& s = lot[number];
      if (!s.range.coded) return status{};
      const span_chunk chunk = chunk_of(s, inputs);
      sums[number].tokens = s.range.count;
      sums[number].inputs = sum_inputs(model, chunk);
      if (!sums[number].rows.empty()) return status{};
      std::vector<E> memory;
      const std::span<const E> rows = reader_.rows(number, blocks_[s.block], s, memory);
      sums[number].rows = sum_rows(limited(exec_, 1), model, chunk, tensor_view<const E, 2>(rows.data(), s.range.count, features_of(s)));
      return status{};
    });
  }
  span_chunk chunk_of(const stored_section& s, const predicted_inputs<codec>& inputs) const {
    return {static_cast<std::size_t>(blocks_[s.block].span),
            s.part,
            s.range.first,
            s.range.count,
            inputs.of(s.part, s.range.first - first_),
            own_means_.of(s.block, s.part)};
  }

  /// What stands beside the rows; of a range that does not begin with the sequence, nothing.
  void plan_sides(call_site where) {
    if constexpr (!names_columns<Spec>)
      require(!options_.columns, "save: the columns of this composition have no name, and can only be rebuilt", where);
    if (first_ > 0) return;
    frame_section of;
    of.heads = static_cast<std::uint16_t>(of_.geometry.kv_heads);
    of.layers = 1;
    for (int l = 0; l < of_.geometry.layers; ++l) {
      if (!of_.layer(l).retrieves) continue;
      of.first_layer = static_cast<std::uint16_t>(l);
      if (of_.balances.on()) {
        of.kind = section_kind::balance;
        of.tokens = static_cast<std::uint32_t>(std::min(last_, of_.balances.rules().tokens));
        const bool fixed = last_ >= of_.balances.rules().tokens && of_.balances.diagonals(slot_number()) != nullptr;
        if (fixed) sides_.push_back({with_part(of, 1), l, -1});
        if (!fixed || std::same_as<codec, raw>) sides_.push_back({with_part(of, 2), l, -1});
      }
      if constexpr (names_columns<Spec>) {
        const column_range range = columns_of<Spec>(last_);
        if (!options_.columns || range.first_page >= range.last_page) continue;
        of.kind = section_kind::column;
        of.first_token = static_cast<std::uint32_t>(range.first_page * layout::shape.tokens);
        of.tokens = static_cast<std::uint32_t>((range.last_page - range.first_page) * layout::shape.tokens);
        for (std::size_t c = 0; c < cache_parts<Spec>::columns.size(); ++c) {
          if (cache_parts<Spec>::columns[c].block_bytes > 0) sides_.push_back({with_part(of, c), l, static_cast<int>(c)});
        }
        of.first_token = 0;
      }
    }
  }
  std::uint32_t slot_number() const { return static_cast<std::uint32_t>(&slot_ - of_.book->slots().data()); }
  static frame_section with_part(frame_section s, std::size_t part) {
    s.part = static_cast<std::uint16_t>(part);
    return s;
  }
  std::vector<std::byte> pack(const side& s) {
    if (s.column >= 0) {
      if constexpr (names_columns<Spec>)
        return reader_.column(columns_digest<Spec>(), s.layer, static_cast<std::size_t>(s.column), columns_of<Spec>(last_));
    }
    const learning_rules& r = of_.balances.rules();
    const learned_balance& learned = reader_.learned();
    const int ordinal = of_.layer(s.layer).ordinal;
    if (s.of.part == 1) return pack_diagonals(r, *learned.balance, ordinal);
    const auto count = static_cast<std::size_t>(std::min<std::int64_t>(r.samples(last_), std::ssize(learned.samples)));
    return pack_samples(r, std::span(learned.samples).first(count), ordinal);
  }

  /// Section `number` of those that were fetched; what kind it comes to stands in it.
  status encode(std::size_t number, stored_section& s, const predicted_inputs<codec>& inputs, std::vector<std::byte>& out) {
    if constexpr (Reader::encodes) {
      if (reader_.encoded(number, out)) return {};
    }
    std::vector<E> memory;
    const std::span<const E> rows = reader_.rows(number, blocks_[s.block], s, memory);  // (T, layers, heads, dim)
    const auto as_they_are = [&] {
      out.resize(rows.size_bytes());
      if (!rows.empty()) std::memcpy(out.data(), rows.data(), out.size());
      return status{};
    };
    if (!s.range.coded) return as_they_are();
    if constexpr (!std::same_as<codec, raw>) {
      const host alone = limited(exec_, 1);
      const tensor_view<const E, 2> matrix(rows.data(), s.range.count, features_of(s));
      const span_chunk chunk = chunk_of(s, inputs);
      if constexpr (has_step<codec>) {
        if (options_.fixed_ratio > 0) {
          out.resize(static_cast<std::size_t>(page_bytes_of(rows.size_bytes())));
          const status made = encode_span_page(alone, of_.spec.codec, chunk, matrix, step(), out);
          s.of.kind = made.ok() ? section_kind::page : section_kind::rows;
          return made.ok() ? made : as_they_are();
        }
      }
      return encode_span(alone, of_.spec.codec, chunk, matrix, step(), out);
    }
    return {status::code::unfit, "save: a coded section of a raw cache"};
  }

  host exec_;
  const cache_parts<Spec>& of_;
  const sequence_book::slot& slot_;
  Reader reader_;
  const save_options& options_;
  std::int64_t first_ = 0, last_ = 0;
  std::vector<stored_block> blocks_;
  std::vector<stored_section> sections_;
  std::vector<mean_section> means_;
  frame_means<codec> own_means_;
  std::vector<side> sides_;
};

}  // namespace kvx
