#pragma once
// Rows of one KV head of a layer some of whose pages are far: those lie in slots while they are read.

#include <kvx/backend/simd/table.hpp>
#include <kvx/layout/far_file.hpp>
#include <kvx/layout/far_rows.hpp>
#include <kvx/layout/host/hot_pages.hpp>
#include <kvx/layout/row_view.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace kvx {

/// Fewest slots of a KV head: rows of the block that is computed and of the next one are read from where they lie, each may be of another
/// page, and none may leave meanwhile.
inline constexpr std::int32_t fewest_hot_pages = 2 * simd::block_tokens;

/// Since the cache was built: far pages that a search or attention asked for, those that were in a slot, those that were read.
struct far_counts {
  std::int64_t wanted = 0;
  std::int64_t hit = 0;
  std::int64_t moved = 0;
};

/// Slots of one layer and KV head. One thread at a time.
///
/// rows        (slots, unit): semantic pages of P rows, or rows
/// error       what errno said of the first read that failed
template <class E>
struct far_slots {
  hot_pages order;
  E* rows = nullptr;
  std::vector<std::uint32_t> asked;  // (slots) the call that asked for it last
  std::uint32_t calls = 0;
  far_counts counts;
  int error = 0;
};

/// One layer.
///
/// near        rows of pages that are near, at their addresses
/// frames      (pages): near where less than near_frames
/// in_time, by_page   bytes of the file before page 0 of this layer: rows in the order of time, and by semantic page
/// by_pages    the unit of slots is the semantic page
template <class E>
struct far_layer {
  row_view<const E> near;
  const far_file* file = nullptr;
  const std::int32_t* frames = nullptr;
  std::int32_t near_frames = 0;
  std::int64_t in_time = 0;
  std::int64_t by_page = 0;
  bool by_pages = false;
  std::vector<far_slots<E>> heads;

  bool is_near(std::int32_t page) const { return frames[page] < near_frames; }
  std::int64_t row_bytes() const { return near.key.slot_stride * static_cast<std::int64_t>(sizeof(E)); }
  std::int64_t head_bytes() const { return near.page_tokens * row_bytes(); }
  std::int64_t page_bytes() const { return std::ssize(heads) * head_bytes(); }
};

/// Where an index has put a token.
///
/// page        logical, of the sequence; id: what its columns lie under
/// row         -1: not looked for
struct semantic_row {
  std::int64_t page = -1;
  std::int32_t id = -1;
  int row = -1;
};

/// last        where the token before was: tokens are often asked for page by page
/// with_row    false: the row may stay unknown, since it takes longer to find
using semantic_row_of = semantic_row (*)(const void* index, std::int64_t token, const semantic_row& last, bool with_row);

/// One KV head of one sequence. Trivially copyable; one thread at a time for a KV head of a layer.
///
/// errors      a row that cannot be read is zero, and far_slots::error tells; the caller throws when the layer is done
template <class E>
class far_head {
 public:
  far_head() = default;

  /// pages       of the sequence
  /// find        null where the unit is the row
  far_head(far_layer<E>* of, const std::int32_t* pages, std::int64_t head, const void* index = nullptr, semantic_row_of find = nullptr)
      : of_(of), pages_(pages), head_(head), index_(index), find_(find) {}

  bool any() const { return of_ != nullptr; }

  /// Where a row lies. It stays there while fewer than fewest_hot_pages others are asked for.
  row_address<E> row(std::int64_t token) {
    const std::int32_t page = pages_[token / of_->near.page_tokens];
    const std::int64_t slot = token % of_->near.page_tokens;
    if (of_->is_near(page)) return {of_->near.key.at(page, head_, slot), of_->near.value.at(page, head_, slot)};
    const std::int64_t key = key_of(token, page, true);
    far_slots<E>& s = slots();
    std::int32_t found = s.order.find(key);
    if (found >= 0) {
      s.order.select(found);
    } else {
      found = take(key);
      fill(key, found);
    }
    const E* const at = rows_in(found) + (find_ != nullptr ? last_.row : 0) * of_->near.key.slot_stride;
    return {at, at + (of_->near.value.data - of_->near.key.data)};
  }

  /// Loads what is missing of these tokens' pages in bulk, half of the slots at most: from the system's memory at once, from the disk side
  /// by side.
  void bring(std::span<const std::int32_t> tokens) {
    far_slots<E>& s = slots();
    ++s.calls;
    std::int64_t before = -1;
    for (const std::int32_t token : tokens) {
      const std::int32_t page = pages_[token / of_->near.page_tokens];
      if (of_->is_near(page)) continue;
      const std::int64_t key = key_of(token, page, false);
      if (std::exchange(before, key) == key) continue;
      const std::int32_t slot = s.order.find(key);
      if (slot < 0 || s.asked[static_cast<std::size_t>(slot)] == s.calls) continue;
      s.order.select(slot);
      s.asked[static_cast<std::size_t>(slot)] = s.calls;
      ++s.counts.wanted, ++s.counts.hit;
    }
    late_units late;
    std::size_t n = 0;
    std::int32_t left = s.order.slots() / 2;
    before = -1;
    for (const std::int32_t token : tokens) {
      const std::int32_t page = pages_[token / of_->near.page_tokens];
      if (of_->is_near(page)) continue;
      const std::int64_t key = key_of(token, page, false);
      if (std::exchange(before, key) == key || s.order.find(key) >= 0) continue;
      if (left-- == 0) break;
      const std::int32_t slot = take(key);
      if (!of_->file->read_now(place_of(key), rows_in(slot), unit_bytes())) late[n++] = {key, slot};
      if (n == late.size()) n = read(late, n);
    }
    read(late, n);
  }

 private:
  /// A unit, which is what is read at once, and the slot that it is read into.
  struct waiting {
    std::int64_t key = 0;
    std::int32_t slot = 0;
  };
  using late_units = std::array<waiting, fewest_hot_pages / 2>;

  far_slots<E>& slots() const { return of_->heads[static_cast<std::size_t>(head_)]; }
  E* rows_in(std::int32_t slot) const {
    return slots().rows + slot * (of_->by_pages ? of_->near.page_tokens : 1) * of_->near.key.slot_stride;
  }

  /// The unit of a token whose page is far: the id of its semantic page, or the number of its row.
  std::int64_t key_of(std::int64_t token, std::int32_t page, bool with_row) {
    const std::int64_t P = of_->near.page_tokens;
    if (find_ == nullptr) return page * P + token % P;
    last_ = find_(index_, token, last_, with_row);
    return last_.id;
  }
  std::int64_t unit_bytes() const { return find_ != nullptr ? of_->head_bytes() : of_->row_bytes(); }
  /// Where it lies in the file.
  std::int64_t place_of(std::int64_t key) const {
    const std::int64_t P = of_->near.page_tokens, of_head = head_ * of_->head_bytes();
    if (find_ != nullptr) return of_->by_page + key * of_->page_bytes() + of_head;
    return of_->in_time + key / P * of_->page_bytes() + of_head + key % P * of_->row_bytes();
  }

  std::int32_t take(std::int64_t key) {
    far_slots<E>& s = slots();
    const std::int32_t slot = s.order.take(key);
    s.asked[static_cast<std::size_t>(slot)] = s.calls;
    ++s.counts.wanted, ++s.counts.moved;
    return slot;
  }

  void fill(std::int64_t key, std::int32_t slot) {
    const int failed = of_->file->read(place_of(key), rows_in(slot), unit_bytes());
    if (failed == 0) return;
    far_slots<E>& s = slots();
    std::memset(static_cast<void*>(rows_in(slot)), 0, static_cast<std::size_t>(unit_bytes()));
    s.order.drop(key);
    if (s.error == 0) s.error = failed;
  }

  std::size_t read(const late_units& late, std::size_t n) {
    for (std::size_t i = 0; n > 1 && i < n; ++i) of_->file->expect(place_of(late[i].key), unit_bytes());
    for (std::size_t i = 0; i < n; ++i) fill(late[i].key, late[i].slot);
    return 0;
  }

  far_layer<E>* of_ = nullptr;
  const std::int32_t* pages_ = nullptr;
  std::int64_t head_ = 0;
  const void* index_ = nullptr;
  semantic_row_of find_ = nullptr;
  semantic_row last_;
};

}  // namespace kvx
