#pragma once
// Which frame of near or far memory holds the rows of each page, and which pages move when near frames run out.

#include <kvx/core/check.hpp>
#include <kvx/layout/page_pool.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace kvx {

/// Rows of a page that go from one frame to another.
struct frame_move {
  std::int32_t from = -1;
  std::int32_t to = -1;

  friend bool operator==(const frame_move&, const frame_move&) = default;
};

/// What must happen to rows before a step: all of `out` first, then all of `in`. A frame that is left in `out` may be filled in `in`.
struct frame_moves {
  std::vector<frame_move> out;  ///< near to far
  std::vector<frame_move> in;   ///< far to near

  bool empty() const { return out.empty() && in.empty(); }
  friend bool operator==(const frame_moves&, const frame_moves&) = default;
};

/// What a step asks of the frames.
///
/// needed      pages that must be near: they are written to, or read as sinks and recent tokens, by this step or one that is open beside it
/// dear        pages that stay near as long as others can go
struct frame_request {
  std::vector<page_id> needed;
  std::vector<page_id> dear;
};

/// Frames [0, near) are near, [near, near + far) far. A page has a frame from the first step that needs it until its id is given out anew.
///
/// exactness   deterministic: near pages leave in the order in which they came near, which for one sequence is that of its tokens
/// cost        settled and place, where nothing moves: O(needed); else O(pages), once for so many tokens as a page holds. 20 bytes a page
/// use         `place` on a copy, which takes the place of the original when the moves are enqueued: what throws between changes nothing.
///             Tables of steps that are open beside must be brought up to date with the moves
class page_frames {
 public:
  page_frames() = default;
  page_frames(std::int64_t pages, std::int64_t near, std::int64_t far)
      : near_(static_cast<std::int32_t>(near)), pages_(static_cast<std::size_t>(pages)), frames_(pages_.size(), -1) {
    for (std::int64_t f = near; f-- > 0;) free_near_.push_back(static_cast<std::int32_t>(f));
    for (std::int64_t f = near + far; f-- > near;) free_far_.push_back(static_cast<std::int32_t>(f));
  }

  std::int32_t near() const { return near_; }

  /// The page whose rows a frame was given for last; empty where it has none.
  page_id page_at(std::int32_t index) const {
    const auto p = static_cast<std::size_t>(index);
    return frames_[p] >= 0 ? id_of(p) : page_id{};
  }

  /// (pages) where the rows of each page lie; what stands there for a page that is not in use means nothing.
  std::span<const std::int32_t> frames() const { return frames_; }
  std::int32_t of(page_id id) const { return id && holds(id) ? frames_[at(id)] : -1; }
  bool is_near(page_id id) const { return holds(id) && frames_[at(id)] < near_; }

  /// Nothing has to be done for these pages.
  bool settled(std::span<const page_id> pages) const {
    for (const page_id id : pages) {
      if (!is_near(id)) return false;
    }
    return true;
  }

  /// Gives every page that is needed a near frame.
  ///
  /// errors      capacity_error where fewer pages can go than must come
  frame_moves place(const page_pool& pool, const frame_request& request, call_site where);

  /// Pages in use that lie near and far.
  struct count {
    std::int64_t near = 0;
    std::int64_t far = 0;
  };
  count used(const page_pool& pool) const {
    count result;
    for (std::size_t p = 0; p < pages_.size(); ++p) {
      if (frames_[p] >= 0 && pool.holds(id_of(p))) ++(frames_[p] < near_ ? result.near : result.far);
    }
    return result;
  }

 private:
  static constexpr std::uint8_t dear = 1, needed = 2;  // marks of pages
  struct page {
    std::uint32_t generation = 0;
    std::int32_t next = -1;  // near pages, in the order in which they came
    std::int32_t previous = -1;
  };
  static std::size_t at(page_id id) { return static_cast<std::size_t>(id.index); }
  page_id id_of(std::size_t p) const { return {static_cast<std::int32_t>(p), pages_[p].generation}; }
  bool holds(page_id id) const { return frames_[at(id)] >= 0 && pages_[at(id)].generation == id.generation; }

  void append(std::int32_t p) {
    pages_[static_cast<std::size_t>(p)].next = -1;
    pages_[static_cast<std::size_t>(p)].previous = last_;
    (last_ >= 0 ? pages_[static_cast<std::size_t>(last_)].next : first_) = p;
    last_ = p;
  }
  void unlink(std::int32_t p) {
    const page& of = pages_[static_cast<std::size_t>(p)];
    (of.previous >= 0 ? pages_[static_cast<std::size_t>(of.previous)].next : first_) = of.next;
    (of.next >= 0 ? pages_[static_cast<std::size_t>(of.next)].previous : last_) = of.previous;
  }
  void drop(std::int32_t p) {
    std::int32_t& frame = frames_[static_cast<std::size_t>(p)];
    if (frame >= 0 && frame < near_) unlink(p);
    if (frame >= 0) (frame < near_ ? free_near_ : free_far_).push_back(frame);
    frame = -1;
  }
  void drop_dead(const page_pool& pool) {
    for (std::size_t p = 0; p < pages_.size(); ++p) {
      if (frames_[p] >= 0 && !pool.holds(id_of(p))) drop(static_cast<std::int32_t>(p));
    }
  }
  void come_near(page_id id, frame_moves& moves);

  std::int32_t near_ = 0;
  std::int32_t first_ = -1;
  std::int32_t last_ = -1;
  std::vector<page> pages_;
  std::vector<std::int32_t> frames_;
  std::vector<std::int32_t> free_near_;
  std::vector<std::int32_t> free_far_;
};

inline void page_frames::come_near(page_id id, frame_moves& moves) {
  std::int32_t& frame = frames_[at(id)];
  const std::int32_t before = frame, now = free_near_.back();
  free_near_.pop_back();
  if (before >= 0) {
    moves.in.push_back({before, now});
    free_far_.push_back(before);
  }
  frame = now;
  pages_[at(id)].generation = id.generation;
  append(id.index);
}

inline frame_moves page_frames::place(const page_pool& pool, const frame_request& request, call_site where) {
  frame_moves moves;
  std::vector<std::uint8_t> marks(pages_.size());
  for (const page_id id : request.dear) marks[at(id)] |= dear;
  std::vector<page_id> coming;
  for (const page_id id : request.needed) {
    if ((marks[at(id)] & needed) != 0) continue;
    marks[at(id)] |= needed;
    if (frames_[at(id)] >= 0 && !holds(id)) drop(id.index);  // of an earlier life
    if (!is_near(id)) coming.push_back(id);
  }
  const auto wanted = coming.size();
  if (free_near_.size() < wanted) drop_dead(pool);
  std::vector<std::int32_t> going;
  for (const std::uint8_t may_go : {std::uint8_t{0}, dear}) {
    for (std::int32_t p = first_; p >= 0 && free_near_.size() + going.size() < wanted; p = pages_[static_cast<std::size_t>(p)].next) {
      if (marks[static_cast<std::size_t>(p)] == may_go) going.push_back(p);
    }
  }
  const auto free = static_cast<std::int64_t>(free_near_.size() + going.size());
  if (std::cmp_greater(wanted, free))
    throw capacity_error("near pages (geometry.near_tokens)", static_cast<std::int64_t>(wanted), free, where);
  if (going.size() > free_far_.size()) drop_dead(pool);
  if (going.size() > free_far_.size())
    throw capacity_error("far pages", static_cast<std::int64_t>(going.size()), static_cast<std::int64_t>(free_far_.size()), where);
  for (const std::int32_t p : going) {
    std::int32_t& frame = frames_[static_cast<std::size_t>(p)];
    unlink(p);
    moves.out.push_back({frame, free_far_.back()});
    free_near_.push_back(frame);
    frame = free_far_.back();
    free_far_.pop_back();
  }
  for (const page_id id : coming) come_near(id, moves);
  return moves;
}

}  // namespace kvx
