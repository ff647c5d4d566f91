#pragma once
// What saving reads of a sequence and restoring writes to one: rows, columns, what was learned. On the host, where they lie.

#include <kvx/backend/host.hpp>
#include <kvx/cache_parts.hpp>
#include <kvx/codec/calibrated.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/digest.hpp>
#include <kvx/layer_memory.hpp>
#include <kvx/layout/page_table.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/layout/sequence_book.hpp>
#include <kvx/learned_balance.hpp>
#include <kvx/stored_blocks.hpp>
#include <kvx/stored_columns.hpp>
#include <kvx/stored_rows.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvx {

/// Rows of some tokens and heads of one layer in host memory, at any alignment.
///
/// shapes      rows (count, .., heads, dim), `pitch` elements from token to token; `first` is the position of the first
struct dense_rows {
  row_part part = row_part::key;
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t first_head = 0;
  std::int64_t heads = 0;
  const std::byte* rows = nullptr;
  std::int64_t pitch = 0;
};

/// A chunk that is to be decoded: its bytes, what ids foretell of its tokens, null for nothing, and the mean of its text, see span_chunk.
struct stored_chunk {
  chunk_place place;
  std::span<const std::byte> bytes;
  const float* inputs = nullptr;
  const float* mean = nullptr;
};

/// Rows that restoring writes to: those of an external layout too, where the caller has bound rows that are not const.
template <class E>
row_view<E> writable(const row_view<E>& rows) {
  return rows;
}
template <class E>
  requires(std::is_const_v<E>)
row_view<std::remove_const_t<E>> writable(const row_view<E>& rows) {
  using T = std::remove_const_t<E>;
  const auto array = [](const row_array<E>& a) {
    return row_array<T>{const_cast<T*>(a.data), a.page_stride, a.head_stride, a.slot_stride};
  };
  return {array(rows.key), array(rows.value), rows.heads, rows.page_tokens, rows.key_dim, rows.value_dim};
}

/// Throws a usage_error where rows of an external layout cannot be written.
template <class Spec>
void require_writable(const cache_parts<Spec>& of, call_site where) {
  if constexpr (!Spec::layout_type::owns_rows) {
    for (const auto& layer : of.layers) require(layer.bound, "restore: bind the rows of every layer first", where);
    for (const auto& layer : of.layers)
      require(layer.writable, "restore: rows of an external layout are bound as const: bind rows that may be written to", where);
  }
}

/// What saving reads of a sequence in a host cache.
///
/// outside     external layouts: the caller's page table of the sequence
template <class Spec>
class host_reader {
 public:
  using E = typename Spec::layout_type::element_type;
  static constexpr bool encodes = false;  ///< it makes chunks

  host_reader(const cache_parts<Spec>& of, const sequence_book::slot& s, std::span<const std::int32_t> outside)
      : of_(of), slot_(s), outside_(outside) {}

  /// These sections will be asked for, by their numbers here.
  ///
  /// inputs      predicted_inputs of the tokens from `first` on; means: frame_means; log2_step of a dead zone; chunks: of any length
  template <class Inputs, class Means>
  status fetch(std::span<const stored_block>, std::span<const stored_section>, const Inputs& /*inputs*/, const Means& /*means*/,
               std::int64_t /*first*/, int /*log2_step*/, bool /*chunks*/) {
    return {};
  }

  /// Sums of the coded ones among sections of one block and part, see text_sums; or makes ready to be asked for their rows.
  template <class Sums>
  status sum(std::span<const stored_block>, std::span<const stored_section>, std::span<Sums>) {
    return {};
  }

  /// The rows (T, layers, heads, dim) of a section, in `memory` where they do not lie together; asked for side by side.
  std::span<const E> rows(std::size_t, const stored_block& block, const stored_section& s, std::vector<E>& memory) const {
    using layout = typename Spec::layout_type;
    const std::int64_t dim = s.part == row_part::key ? layout::shape.key_dim : layout::shape.value_dim, features = block.rows() * dim;
    memory.resize(static_cast<std::size_t>(s.range.count * features));
    for (std::size_t i = 0; i < block.layers.size(); ++i) {
      const std::int32_t l = block.layers[i];
      const std::int32_t* const pages = outside_.empty() ? table_of(l).pages.data() : outside_.data();
      read_rows<const E>(of_.layer(l).rows, s.part, pages, s.range.first, s.range.count, block.first_head, block.heads,
                         memory.data() + static_cast<std::int64_t>(i) * block.heads * dim, features);
    }
    return memory;
  }

  /// The payload of a column's section.
  std::vector<std::byte> column(const digest& name, int layer, std::size_t c, const column_range& range) const {
    return pack_column(name, cache_parts<Spec>::columns[c], of_.layer(layer).side[c], range, table_of(layer).pages);
  }

  const learned_balance& learned() const { return of_.balances.slots()[static_cast<std::size_t>(&slot_ - of_.book->slots().data())]; }

 private:
  const page_table& table_of(int layer) const { return slot_.tables[static_cast<std::size_t>(of_.layer(layer).group)]; }

  const cache_parts<Spec>& of_;
  const sequence_book::slot& slot_;
  std::span<const std::int32_t> outside_;
};

/// What restoring writes to a sequence in a host cache.
template <class Spec>
class host_writer {
 public:
  static constexpr bool side_by_side = true;  ///< `write` may be called for several rows at once
  static constexpr bool decodes = false;      ///< it takes chunks

  explicit host_writer(std::span<const std::int32_t> outside) : outside_(outside.begin(), outside.end()) {}

  /// The caller's page table of the sequence, in an external layout.
  std::span<const std::int32_t> outside() const { return outside_; }

  /// The cache that is written to, for the calls that follow.
  template <class Runner>
  void use(const host&, const cache_parts<Spec>& of, const Runner&) {
    of_ = &of;
  }

  void write(int layer, const dense_rows& from, std::span<const page_table> tables) const {
    const auto& place = of_->layer(layer);
    const std::int32_t* const pages = outside_.empty() ? tables[static_cast<std::size_t>(place.group)].pages.data() : outside_.data();
    write_rows(writable(place.rows), from.part, pages, from.first, from.count, from.first_head, from.heads, from.rows, from.pitch);
  }

  /// What was written of a layer goes where it belongs.
  void finish(int, std::span<const page_table>) const {}

  /// The blocks of a column whose payload begins with those of `range`.
  void column(int layer, std::size_t c, std::span<const std::byte> payload, const column_range& range,
              std::span<const std::int32_t> pages) const {
    unpack_column(payload, cache_parts<Spec>::columns[c], of_->layer(layer).side[c], range.first_page, range, pages);
  }

 private:
  const cache_parts<Spec>* of_ = nullptr;
  std::vector<std::int32_t> outside_;
};

/// By backend: the threads that code rows.
inline host coding_threads(const host& exec) { return exec; }

/// By backend: throws a usage_error where a call may not wait.
inline void require_waits(const host&, call_site) {}

template <class Spec, class Runner>
host_reader<Spec> make_reader(const host&, const cache_parts<Spec>& of, const Runner&, const sequence_book::slot& s,
                              std::span<const std::int32_t> outside) {
  return {of, s, outside};
}

template <class Spec>
host_writer<Spec> make_writer(const host&, const cache_parts<Spec>&, std::span<const std::int32_t> outside) {
  return host_writer<Spec>(outside);
}

/// By backend: what was read of a stored sequence becomes what an entry of a step learns; a table in the backend's memory.
inline void take_samples(const host&, const learning_rules&, std::vector<std::shared_ptr<query_sample>>&& samples, learning_entry& entry) {
  entry.samples = std::move(samples);
}
inline std::shared_ptr<balance_table> take_table(const host&, const learning_rules&, std::shared_ptr<balance_table>&& table) {
  return std::move(table);
}

}  // namespace kvx
