#pragma once
// Rows of a cache on the host that lie in a file: which pages are in memory, what goes to the file and comes back.

#include <kvx/backend/host.hpp>
#include <kvx/cache_parts.hpp>
#include <kvx/cache_stats.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/entering_blocks.hpp>
#include <kvx/index/block_columns.hpp>
#include <kvx/layer_memory.hpp>
#include <kvx/layout/far_file.hpp>
#include <kvx/layout/host/far_head.hpp>
#include <kvx/layout/host/far_images.hpp>
#include <kvx/layout/page_frames.hpp>
#include <kvx/layout/page_runs.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/layout/sequence_book.hpp>
#include <kvx/layout/zones.hpp>
#include <kvx/resident_pages.hpp>
#include <kvx/spec.hpp>
#include <kvx/step.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace kvx {

/// Near pages, file and slots of one cache.
///
/// what        a row has one address for its life, as in a resident cache. While its page is far the memory there is given back to the
///             system, and its bytes lie in the file: in the order of time from the step that sent the page away, and, where an index packs
///             blocks, by semantic page from the commit that packed it. All layers that retrieve keep the same pages near
/// errors      what the file says, see throw_far_error; a call that throws has changed nothing
/// threads     those of the cache
template <class Spec>
class host_offload {
 public:
  using parts = cache_parts<Spec>;
  using layout = typename Spec::layout_type;
  using memory = typename parts::memory;
  using E = typename layout::element_type;
  static constexpr bool packs = packs_blocks<typename Spec::index_type>;
  static_assert(layout::owns_rows && layout::shares_pages, "offload_bulk: rows lie in pages of the cache");

  host_offload(const host& exec, const parts& of, call_site where) {
    const auto& g = of.geometry;
    const auto& groups = of.plan.groups;
    const auto found = std::find_if(groups.begin(), groups.end(), [](const layer_group& of_layers) { return of_layers.retrieving > 0; });
    if (found == groups.end()) return;
    group_ = static_cast<std::size_t>(found - groups.begin());
    const layer_group& group = *found;
    const std::int64_t near = group.rules.pages(g.near_tokens);
    if (g.near_tokens == 0 || near >= group.pages()) return;
    require(exec.memory->is_equal(*lazy_pages()), "host.memory: beside offload_bulk rows lie in lazy_pages, whose memory can be given back",
            where);
    frames_ = page_frames(group.pages(), near, group.pages());
    const std::int64_t image = g.kv_heads * layout::shape.tokens * pitch_of<E>(layout::shape).row * static_cast<std::int64_t>(sizeof(E));
    images_ = std::make_unique<far_images<E>>(g.far, group.pages(), image, group.retrieving, packs, where);
    if constexpr (packs) unstored_.resize(static_cast<std::size_t>(group.pages()));
    const std::int64_t unit = packs ? layout::shape.tokens : 1;
    const auto slots = static_cast<std::int32_t>(std::max<std::int64_t>(g.hot_rows / unit, fewest_hot_pages));
    const std::int64_t slot_elements = slots * unit * pitch_of<E>(layout::shape).row;
    slots_ = allocate(exec, group.retrieving * g.kv_heads * slot_elements * static_cast<std::int64_t>(sizeof(E)));
    auto* rows = reinterpret_cast<E*>(slots_.data());
    layers_.resize(static_cast<std::size_t>(group.retrieving));
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      far_layer<E>& layer = layers_[l];
      layer.file = &images_->file();
      layer.near_frames = frames_.near();
      layer.in_time = images_->in_time(static_cast<std::int64_t>(l));
      layer.by_page = images_->by_page(static_cast<std::int64_t>(l));
      layer.by_pages = packs;
      layer.heads.resize(static_cast<std::size_t>(g.kv_heads));
      for (far_slots<E>& head : layer.heads) {
        head.order = hot_pages(slots);
        head.asked.resize(static_cast<std::size_t>(slots));
        head.rows = rows;
        rows += slot_elements;
      }
    }
  }

  bool on() const { return !layers_.empty(); }

  /// Where the rows of a layer lie during an attend; null where all are near.
  far_layer<E>* rows_of(const memory& layer) {
    if (!on() || !layer.retrieves) return nullptr;
    far_layer<E>& result = layers_[static_cast<std::size_t>(layer.ordinal)];
    result.near = layer.rows;
    result.frames = frames_.frames().data();
    return &result;
  }

  /// Throws what reading the rows of a layer has met since the last call.
  void check(const memory& layer, call_site where) {
    if (!on() || !layer.retrieves) return;
    int error = 0;
    for (far_slots<E>& head : layers_[static_cast<std::size_t>(layer.ordinal)].heads) {
      const int of_head = std::exchange(head.error, 0);
      if (error == 0) error = of_head;
    }
    if (error != 0) throw_far_error(error, "read", 0, where);
  }

  /// A step that restores a sequence: blocks that enter with it are packed without a commit, so the first begin that sees one stores it.
  void place([[maybe_unused]] const step_plan& step) {
    if (!on()) return;
    unsettled_ = true;
    if constexpr (packs) {
      const std::span<const batch_item> items = step.items[group_];
      for (const entering_blocks& e : blocks_of(step.reserved, Spec::zones, layout::shape.tokens, {}, items)) {
        for (std::int64_t b = e.first; b < e.first + e.count; ++b)
          unstored_[static_cast<std::size_t>(items[e.entry].pages[(b + 1) * block_pages() - 1])] = true;
      }
    }
  }

  /// What a step writes to, and its sinks and recent tokens, come near; those of steps that are open beside it stay.
  ///
  /// errors      capacity_error where more pages must be near than there is room for
  void plan(const parts& of, const step_plan& step, call_site where) {
    if (!on()) return;
    if (!std::exchange(advised_, true)) {
      for (const memory& layer : of.layers) {
        if (layer.retrieves) images_->prefer_small_pages(layer.rows, of.plan.groups[group_].pages());
      }
    }
    const std::span<const sequence_book::slot> slots = of.book->slots();
    const page_pool& pool = of.book->groups()[group_].pool;
    frame_request request;
    std::vector<page_id> restored;  // rows that came without a step
    bool unstored = false;
    std::vector<bool> mine(slots.size());
    for (const reservation::part& p : step.reserved.parts) {
      mine[p.slot] = true;
      add_needed(of, slots[p.slot], request.needed);
      if (unsettled_ && slots[p.slot].whole()) unstored = add_restored(slots[p.slot], restored) || unstored;
    }
    if (restored.empty() && !unstored && frames_.settled(request.needed)) return;
    const std::size_t own = request.needed.size();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (!slots[i].open || mine[i]) continue;
      add_needed(of, slots[i], slots[i].in_step || !slots[i].whole() ? request.needed : request.dear);
    }
    if (unstored) store_restored(of, step, where);
    page_frames next = frames_;
    if (!restored.empty()) {
      // Part after part through near memory, so that any length fits.
      const std::vector<page_id> others(request.needed.begin() + static_cast<std::ptrdiff_t>(own), request.needed.end());
      const auto part = static_cast<std::size_t>(std::max<std::int64_t>(1, frames_.near() - std::ssize(others)));
      for (std::size_t i = 0; i < restored.size(); i += part) {
        frame_request some{others, request.dear};
        some.needed.insert(some.needed.end(), restored.begin() + static_cast<std::ptrdiff_t>(i),
                           restored.begin() + static_cast<std::ptrdiff_t>(std::min(restored.size(), i + part)));
        (void)next.place(pool, some, where);
      }
    }
    (void)next.place(pool, request, where);
    move(of, pool, next, where);
    frames_ = std::move(next);
    for (const memory& layer : of.layers) {
      for (std::size_t i = 0; layer.retrieves && i < going_.size(); ++i) images_->give_back(layer.rows, going_[i]);
    }
    unsettled_ = unsettled_ && std::any_of(slots.begin(), slots.end(), [&](const sequence_book::slot& slot) {
                   std::vector<page_id> left;
                   return slot.open && (!slot.whole() || add_restored(slot, left) || !left.empty());
                 });
  }

  /// Pages in one layer, or in all that retrieve, whose rows lie at their addresses as long as this is there.
  class held_pages {
   public:
    held_pages() = default;
    held_pages(held_pages&& other) noexcept : images_(other.images_), pages_(std::exchange(other.pages_, {})) {}
    held_pages& operator=(held_pages&&) = delete;
    ~held_pages() {
      for (const auto& [rows, page] : pages_) images_->give_back(rows, page);
    }

   private:
    friend host_offload;
    const far_images<E>* images_ = nullptr;
    std::vector<std::pair<row_view<E>, std::int32_t>> pages_;
  };

  /// Reads the far ones of these pages. It needs memory for all of them.
  ///
  /// ordinal     of the layer, or -1 for all
  held_pages hold(const parts& of, std::span<const page_id> pages, int ordinal, call_site where) const {
    held_pages held;
    if (!on()) return held;
    held.images_ = images_.get();
    std::vector<std::int32_t> far;
    for (const page_id id : pages) {
      if (id && frames_.of(id) >= frames_.near() && of.book->groups()[group_].pool.holds(id)) far.push_back(id.index);
    }
    std::sort(far.begin(), far.end());
    far.erase(std::unique(far.begin(), far.end()), far.end());
    for (const memory& layer : of.layers) {
      if (!layer.retrieves || (ordinal >= 0 && layer.ordinal != ordinal)) continue;
      for (const std::int32_t page : far) held.pages_.emplace_back(layer.rows, page);
      images_->read(layer.rows, layer.ordinal, far, where);
    }
    return held;
  }

  /// Rows of pages that are copied on write.
  held_pages hold_sources(const parts& of, std::span<const page_copy> copies, call_site where) const {
    std::vector<page_id> from;
    for (const page_copy& c : copies) {
      if (on() && std::cmp_equal(c.group, group_)) from.push_back(frames_.page_at(static_cast<std::int32_t>(c.from)));
    }
    return hold(of, from, -1, where);
  }

  std::span<const page_id> pages(const parts& of, std::uint32_t slot) const { return of.book->slots()[slot].tables[group_].units; }

  /// Writes the blocks that a commit has packed to the file, by semantic page. Nothing of it can be seen before the sequences grow.
  void store(const parts& of, const step_plan& step, std::span<const std::int64_t> accepted, call_site where) {
    if constexpr (packs) {
      if (!on()) return;
      const std::span<const batch_item> items = step.items[group_];
      for (const entering_blocks& e : blocks_of(step.reserved, Spec::zones, layout::shape.tokens, accepted, items)) {
        for (std::int64_t b = e.first; b < e.first + e.count; ++b) store_block(of, items[e.entry].pages, b, where);
      }
    }
  }

  void count(const parts& of, cache_stats& to) const {
    if (!on()) return;
    const layer_group& group = of.plan.groups[group_];
    const page_pool& pool = of.book->groups()[group_].pool;
    const page_frames::count used = frames_.used(pool);
    to.row_bytes -= group.retrieving * used.far * images_->bytes();
    to.far_bytes += group.retrieving * used.far * images_->bytes();
    to.slot_bytes += slots_.size();
    for (const far_layer<E>& layer : layers_) {
      for (const far_slots<E>& head : layer.heads) {
        to.far_wanted += head.counts.wanted;
        to.far_hit += head.counts.hit;
        to.far_moved += head.counts.moved;
        to.far_bytes_moved += head.counts.moved * (packs ? layer.head_bytes() : layer.row_bytes());
      }
    }
  }

 private:
  /// Sequences that are being restored have rows that are still to be written: all of their pages, or, where blocks are packed when all
  /// layers are there, none yet.
  void add_needed(const parts& of, const sequence_book::slot& slot, std::vector<page_id>& to) const {
    const page_table& table = slot.tables[group_];
    if (slot.whole()) return add_residents(of, group_, table, slot.length, to);
    if constexpr (!packs) to.insert(to.end(), table.units.begin(), table.units.end());
  }

  /// Adds the pages of the zone whose rows came without a step. Returns whether blocks came that are not in the file.
  bool add_restored(const sequence_book::slot& slot, std::vector<page_id>& to) const {
    const std::vector<page_id>& units = slot.tables[group_].units;
    const std::int64_t tokens = layout::shape.tokens, recent = edge(Spec::zones, slot.length, tokens) / tokens;
    for (std::int64_t page = Spec::zones.sink / tokens; page < recent; ++page) {
      if (frames_.of(units[static_cast<std::size_t>(page)]) < 0) to.push_back(units[static_cast<std::size_t>(page)]);
    }
    return lacks_images(units, recent);
  }

  static constexpr std::int64_t block_pages() {
    if constexpr (packs) return Spec::index_type::shape.block / layout::shape.tokens;
    return 1;
  }

  /// Whether one of the blocks before a page has entered without a commit and is not stored yet.
  bool lacks_images([[maybe_unused]] const std::vector<page_id>& units, [[maybe_unused]] std::int64_t end) const {
    if constexpr (packs) {
      for (std::int64_t page = block_pages(); page <= end; page += block_pages()) {
        if (unstored_[static_cast<std::size_t>(units[static_cast<std::size_t>(page - 1)].index)]) return true;
      }
    }
    return false;
  }

  /// Writes the pages that are near, or nowhere yet, and go; reads those that come.
  void move(const parts& of, const page_pool& pool, const page_frames& next, call_site where) {
    going_.clear();
    std::vector<std::int32_t> coming;
    const auto pages = static_cast<std::int32_t>(next.frames().size());
    for (std::int32_t p = 0; p < pages; ++p) {
      const page_id id = next.page_at(p);
      if (!id || !pool.holds(id)) continue;
      const bool was_far = frames_.of(id) >= frames_.near(), is_far = next.of(id) >= next.near();
      if (is_far && !was_far) going_.push_back(p);
      if (was_far && !is_far) coming.push_back(p);
    }
    for (const memory& layer : of.layers) {
      if (!layer.retrieves) continue;
      images_->write(layer.rows, layer.ordinal, going_, where);
      images_->read(layer.rows, layer.ordinal, coming, where);
    }
    if constexpr (!packs) {
      for (const std::int32_t page : going_) drop_rows(page);
    }
  }

  void drop_rows(std::int64_t page) {
    for (far_layer<E>& layer : layers_) {
      for (far_slots<E>& head : layer.heads) {
        for (std::int64_t row = page * layout::shape.tokens; row < (page + 1) * layout::shape.tokens; ++row) head.order.drop(row);
      }
    }
  }

  /// ids         (pages) of the sequence; all rows of the block are near
  void store_block(const parts& of, const std::int32_t* ids, std::int64_t block, call_site where) {
    if constexpr (packs) {
      constexpr dci_shape shape = Spec::index_type::shape;
      constexpr std::int64_t P = layout::shape.tokens;
      const std::int64_t end = (block + 1) * block_pages(), first = std::min(std::max(end - block_pages(), Spec::zones.sink / P), end);
      const std::int64_t pitch = pitch_of<E>(layout::shape).row, most = std::min(images_->most_at_once(), block_pages());
      images_of_.resize(static_cast<std::size_t>(most * of.geometry.kv_heads * P * pitch));
      for (const memory& layer : of.layers) {
        if (!layer.retrieves) continue;
        far_layer<E>& to = layers_[static_cast<std::size_t>(layer.ordinal)];
        for_each_run({ids + first, ids + end}, most, [&](auto run) {  // sinks are in no semantic page
          E* image = images_of_.data();
          for (const std::int32_t& id : run) {
            for (int h = 0; h < of.geometry.kv_heads; ++h, image += P * pitch) {
              to.heads[static_cast<std::size_t>(h)].order.drop(id);
              const dci_head<E> head = tree_head<E>(row_view<const E>(layer.rows), layer.side, ids, ids, h, Spec::zones.sink);
              const packed_page members = head.packed(shape, &id - ids);
              for (int i = 0; i < members.count(); ++i)
                std::memcpy(image + i * pitch, head.key(block * shape.block + members.member(i)),
                            static_cast<std::size_t>(pitch) * sizeof(E));
            }
          }
          images_->write_by_page(images_of_.data(), layer.ordinal, run.front(), std::ssize(run), where);
        });
      }
      unstored_[static_cast<std::size_t>(ids[end - 1])] = false;
    }
  }

  /// The same for the blocks of a step's sequences that came without a commit.
  void store_restored(const parts& of, const step_plan& step, call_site where) {
    if constexpr (packs) {
      constexpr std::int64_t P = layout::shape.tokens;
      for (std::size_t i = 0; i < step.reserved.parts.size(); ++i) {
        const sequence_book::slot& slot = of.book->slots()[step.reserved.parts[i].slot];
        if (!slot.whole()) continue;  // its blocks are still to be packed
        const std::int32_t* const ids = step.items[group_][i].pages;
        const std::vector<page_id>& units = slot.tables[group_].units;
        const std::int64_t blocks = edge(Spec::zones, step.reserved.parts[i].length, P) / P / block_pages();
        for (std::int64_t b = 0; b < blocks; ++b) {
          const std::span<const page_id> own(units.data() + b * block_pages(), static_cast<std::size_t>(block_pages()));
          if (!unstored_[static_cast<std::size_t>(own.back().index)]) continue;
          const held_pages held = hold(of, own, -1, where);  // a block may lie in the sequence that this one continues
          store_block(of, ids, b, where);
        }
      }
    }
  }

  std::size_t group_ = 0;
  page_frames frames_;
  std::vector<std::int32_t> going_;  // by the last plan
  std::unique_ptr<far_images<E>> images_;
  memory_block slots_;
  std::vector<far_layer<E>> layers_;  // by ordinal; empty where all rows are near
  std::vector<E> images_of_;  // (pages, H, P, pitch) that are stored at once
  std::vector<bool> unstored_;  // (pages) the last of a block whose semantic pages are not in the file yet; a stale one costs a write
  bool unsettled_ = false;  // a sequence was restored, and its rows may still have no frame, its blocks no image
  bool advised_ = false;
};

/// Where nothing lies in a file.
template <class Spec>
struct all_in_memory {
  using parts = cache_parts<Spec>;
  using memory = typename parts::memory;
  struct held_pages {};

  all_in_memory(const host&, const parts&, call_site) {}
  static auto rows_of(const memory& layer) { return layer.far; }
  static void check(const memory&, call_site) {}
  static void place(const step_plan&) {}
  static void plan(const parts&, const step_plan&, call_site) {}
  static held_pages hold(const parts&, std::span<const page_id>, int, call_site) { return {}; }
  static held_pages hold_sources(const parts&, std::span<const page_copy>, call_site) { return {}; }
  static void store(const parts&, const step_plan&, std::span<const std::int64_t>, call_site) {}
  static void count(const parts&, cache_stats&) {}
};

}  // namespace kvx
