#pragma once
// Rows of layers that retrieve between near and far memory: what a step needs near comes near, and the oldest pages leave for it.

#include <kvx/backend/cuda/copy_out.cuh>
#include <kvx/backend/cuda/event.cuh>
#include <kvx/backend/cuda/memory.cuh>
#include <kvx/backend/cuda/pinned.cuh>
#include <kvx/backend/cuda/registered.cuh>
#include <kvx/backend/cuda/upload.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/cache_parts.hpp>
#include <kvx/cache_stats.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/cuda/device_scratch.cuh>
#include <kvx/cuda/encode_step.cuh>
#include <kvx/index/block_columns.hpp>
#include <kvx/layer_memory.hpp>
#include <kvx/layout/cuda/fetch_rows.cuh>
#include <kvx/layout/cuda/move_pages.cuh>
#include <kvx/layout/far_rows.hpp>
#include <kvx/layout/hot_rows.hpp>
#include <kvx/layout/layer_kind.hpp>
#include <kvx/layout/page_frames.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/layout/page_table.hpp>
#include <kvx/layout/placement.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/layout/sequence_book.hpp>
#include <kvx/resident_pages.hpp>
#include <kvx/step.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvx {

/// Rows of one layer as kernels of the user's own read them: far.row(near, frames[page], head, slot) for a page of cache::pages.
template <class E>
struct placed_rows {
  row_view<const E> near;
  far_rows<E> far;
  std::span<const std::int32_t> frames;
};

/// Far memory, slots and frames of one cache. Slots take whole semantic pages where there are such and the layout says offload_bulk, else
/// rows.
///
/// what        pages of a group of layers share one frame number, so that one table serves all layers that retrieve
/// use         `plan` a step, upload its piece and the tables of all open steps, then `accept`; without `accept` nothing has changed
/// cost        built: page-locks all far memory. A step: nothing is enqueued while near frames are free; else a page that goes is copied
///             once, in one launch a layer
template <class Spec>
class row_offload {
 public:
  using layout = typename Spec::layout_type;
  using E = typename layout::element_type;
  static constexpr bool by_pages = layout::place == placement::offload_bulk && packs_blocks<typename Spec::index_type>;
  using lying = std::conditional_t<by_pages, offloaded_pages<E>, offloaded_rows<E>>;

  row_offload(const device& exec, const cache_parts<Spec>& of, call_site where) : home_(exec), tables_(of.book->slots().size()) {
    const auto& groups = of.plan.groups;
    const auto group = std::find_if(groups.begin(), groups.end(), [](const layer_group& g) { return g.near_pages > 0; });
    if (group == groups.end()) return;
    group_ = static_cast<std::size_t>(group - groups.begin());
    frames_ = page_frames(group->pages(), group->near_pages, group->far_pages);
    const int H = of.geometry.kv_heads, slots = group->far_pages > 0 ? of.geometry.hot_rows : 0;
    const std::int64_t far_rows_each = group->far_pages * layout::shape.tokens, pitch = pitch_of<E>(layout::shape).row;
    const std::int64_t bytes = row_bytes<E>(layout::shape, group->far_pages, H);
    far_ = registered_memory(exec.ordinal, group->retrieving * bytes, where);
    scratch_parts size;
    for (int l = 0; l < group->retrieving; ++l) place_hot_rows<E>(size, H, slots, far_rows_each, pitch);
    slots_ = allocate(exec, size.used);
    shown_ = pinned_block(exec.ordinal, std::int64_t{group->retrieving} * H * slot_counts * 8);
    if (shown_.size() > 0) std::memset(shown_.data(), 0, static_cast<std::size_t>(shown_.size()));  // none where no layer retrieves
    scratch_parts memory{slots_.data()};
    for (int l = 0; l < group->retrieving; ++l) {
      const row_view<E> far = layout::rows(reinterpret_cast<E*>(far_.data() + l * bytes), group->far_pages, H);
      lying& layer = layers_.emplace_back();
      layer.far = {far.key, far.value, group->near_pages};
      layer.hot = place_hot_rows<E>(memory, H, slots, far_rows_each, pitch, by_pages ? layout::shape.tokens : 1);
      layer.hot.shown = reinterpret_cast<std::uint64_t*>(shown_.data()) + std::int64_t{l} * H * slot_counts;
      clear_hot_rows(exec, layer.hot, H);
    }
  }
  row_offload(row_offload&&) = default;
  ~row_offload() {
    if (shown_.size() == 0) return;
    try {
      wait_for(home_);  // far memory and counts are the host's: nothing may still use them
    } catch (...) {  // the device is lost
    }
  }

  const lying& rows_of(int ordinal) const { return layers_[static_cast<std::size_t>(ordinal)]; }
  std::int32_t frame(std::int32_t page) const { return frames_.frames()[static_cast<std::size_t>(page)]; }
  bool moves() const { return !list_.empty(); }
  placed_rows<E> placed(int ordinal, const row_view<const E>& near) const { return {near, rows_of(ordinal).far, frames_.frames()}; }

  /// What a step writes to, and its sinks and recent tokens, are to come near; those of steps that are open beside it stay.
  ///
  /// errors      capacity_error where more pages must be near than there is room for
  upload_piece plan(const device& exec, const cache_parts<Spec>& of, const step_plan& step, call_site where) {
    list_.clear();
    next_.reset();
    if (layers_.empty()) return {};
    const std::span<const sequence_book::slot> slots = of.book->slots();
    frame_request request;
    std::vector<bool> mine(slots.size());
    for (const reservation::part& p : step.reserved.parts) {
      mine[p.slot] = true;
      const page_table& table = slots[p.slot].tables[group_];
      add_residents(of, group_, table, p.length, request.needed);
      for (const page_id id : table.units) {
        if (id && frames_.of(id) < 0) request.needed.push_back(id);  // its rows are still to be written
      }
    }
    if (frames_.settled(request.needed)) return {};
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (!slots[i].open || mine[i]) continue;
      add_residents(of, group_, slots[i].tables[group_], slots[i].length, slots[i].in_step ? request.needed : request.dear);
    }
    page_frames next = frames_;
    const frame_moves moves = next.place(of.book->groups()[group_].pool, request, where);
    for (const auto* part : {&moves.out, &moves.in}) {
      for (const frame_move& m : *part) list_.push_back({m.from, m.to, layout::shape.tokens});
    }
    going_ = std::ssize(moves.out);
    const upload_piece piece = reserve_list(exec, list_);
    next_ = std::move(next);
    return piece;
  }

  /// The pieces of the last plan have been uploaded: rows move behind all that is enqueued, encoding included.
  void accept(const device& exec, const cache_parts<Spec>& of, step_encoder& encoder) {
    if (!next_) return;
    if (moves()) {
      encoder.finish(exec);
      enqueue(exec, of, std::ssize(list_), going_);
    }
    frames_ = std::move(*next_);
    next_.reset();
  }

  /// Copies on write: rows of pages whose columns are copied under the same list.
  void copy(const device& exec, const cache_parts<Spec>& of, std::span<const page_copy> copies) {
    std::vector<copied_pages> list;
    for (const page_copy& c : copies) {
      if (std::cmp_equal(c.group, group_)) list.push_back({frame(c.from), frame(c.to), c.rows});
    }
    if (layers_.empty() || list.empty()) return;
    const upload_piece piece = reserve_list(exec, list);
    uploads_.enqueue(exec, {&piece, 1});
    enqueue(exec, of, std::ssize(list), std::ssize(list));
  }

  /// Frames of a sequence's pages as its device table must hold them behind the next accept. They lie there until the next call for the
  /// slot.
  const std::vector<std::int32_t>& table(const cache_parts<Spec>& of, std::size_t slot) {
    std::vector<std::int32_t>& result = tables_[slot];
    result.clear();
    if (layers_.empty()) return result;
    for (const page_id id : of.book->slots()[slot].tables[group_].units) result.push_back(id ? (next_ ? *next_ : frames_).of(id) : -1);
    return result;
  }

  void count(const cache_parts<Spec>& of, cache_stats& to) const {
    if (layers_.empty()) return;
    const layer_group& group = of.plan.groups[group_];
    const page_pool& pool = of.book->groups()[group_].pool;
    const page_frames::count used = frames_.used(pool);
    const int H = of.geometry.kv_heads;
    to.row_bytes -= group.retrieving * row_bytes<E>(layout::shape, pool.used(), H);
    to.row_bytes += group.retrieving * row_bytes<E>(layout::shape, used.near, H);
    to.far_bytes += group.retrieving * row_bytes<E>(layout::shape, used.far, H);
    to.slot_bytes += slots_.size();
    const auto* const counts = reinterpret_cast<const std::uint64_t*>(shown_.data());
    for (std::int64_t i = 0; i < shown_.size() / 8; i += slot_counts) {
      const auto near = static_cast<std::int64_t>(counts[i]), hot = static_cast<std::int64_t>(counts[i + 1]),
                 beyond = static_cast<std::int64_t>(counts[i + 2]);
      if (!by_pages) to.selected_near += near, to.selected_hot += hot, to.selected_far += beyond;
      to.far_wanted += hot + beyond;
      to.far_hit += hot;
      to.far_moved += beyond;
      to.far_bytes_moved +=
          static_cast<std::int64_t>(counts[i + 3]) * pitch_of<E>(layout::shape).row * static_cast<std::int64_t>(sizeof(E));
    }
  }

 private:
  upload_piece reserve_list(const device& exec, const std::vector<copied_pages>& list) {
    const std::int64_t bytes = std::ssize(list) * static_cast<std::int64_t>(sizeof(copied_pages));
    lists_.reserve(exec, bytes, false);
    return {lists_.data(), list.data(), bytes};
  }

  /// The first `before` of n uploaded copies in one launch a layer, the others in a second.
  void enqueue(const device& exec, const cache_parts<Spec>& of, std::int64_t n, std::int64_t before) {
    const auto* const there = reinterpret_cast<const copied_pages*>(lists_.data());
    for (const auto& layer : of.layers) {
      if (!layer.may_be_far()) continue;
      const lying& rows = rows_of(layer.ordinal);
      move_pages(exec, layer.rows, rows.far, rows.hot, there, before);
      move_pages(exec, layer.rows, rows.far, rows.hot, there + before, n - before);
    }
  }

  device home_;
  std::size_t group_ = 0;
  page_frames frames_;
  std::optional<page_frames> next_;  // planned
  std::vector<copied_pages> list_;  // planned
  std::int64_t going_ = 0;  // of the list, those that come first
  registered_memory far_;
  device_block slots_;
  pinned_block shown_;
  std::vector<lying> layers_;  // by ordinal; empty where no layer retrieves
  std::vector<std::vector<std::int32_t>> tables_;  // (sequence slots)
  upload_ring uploads_;
  device_scratch lists_;
};

/// Where all rows are near.
struct rows_stay {
  template <class... T>
  explicit rows_stay(const T&...) {}
};

}  // namespace kvx
