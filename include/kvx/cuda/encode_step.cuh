#pragma once
// What a commit encodes on the device, on a stream of the cache's own: balances that its step completes, pages that enter the zone.

#include <kvx/backend/cuda/event.cuh>
#include <kvx/backend/cuda/upload.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/cache_parts.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/cuda/device_scratch.cuh>
#include <kvx/cuda/learned_balance.cuh>
#include <kvx/entering_blocks.hpp>
#include <kvx/entering_pages.hpp>
#include <kvx/index/block_columns.hpp>
#include <kvx/index/cuda/dci_links.cuh>
#include <kvx/index/cuda/dci_tree.cuh>
#include <kvx/index/cuda/line_places.cuh>
#include <kvx/index/cuda/page_codes.cuh>
#include <kvx/index/cuda/page_values.cuh>
#include <kvx/index/promoted_tokens.hpp>
#include <kvx/layout/batch_item.hpp>
#include <kvx/layout/placement.hpp>
#include <kvx/learned_balance.hpp>
#include <kvx/rerank/tiers.hpp>
#include <kvx/sketch/cuda/balance.cuh>
#include <kvx/sketch/cuda/key_code.cuh>
#include <kvx/sketch/cuda/value_code.cuh>
#include <kvx/sketch/value_code.hpp>
#include <kvx/spec.hpp>
#include <kvx/step.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

namespace kvx {

/// An entry whose balance a commit fixes, and the samples behind the sink that it learns from.
struct completed_balance {
  std::size_t entry = 0;
  std::vector<const query_sample*> samples;

  /// Heads whose queries were seen, as far as the host knows: see make_balance_table.
  void mark_seen(const learning_rules& rules, balance_table& table) const {
    for (int l = 0; l < rules.layers; ++l) {
      const bool seen =
          std::any_of(samples.begin(), samples.end(), [&](const query_sample* s) { return s->seen[static_cast<std::size_t>(l)] != 0; });
      std::fill_n(table.seen.begin() + std::ptrdiff_t{l} * rules.heads, rules.heads, static_cast<std::uint8_t>(seen ? 1 : 0));
    }
  }
};

/// The balances that a commit with these accepted tokens fixes.
inline std::vector<completed_balance> completed_balances(const balance_book& book, const step_plan& step,
                                                         std::span<const std::int64_t> accepted) {
  std::vector<completed_balance> result;
  const learning_rules& rules = book.rules();
  for (std::size_t i = 0; i < step.learning.size(); ++i) {
    const reservation::part& p = step.reserved.parts[i];
    const std::int64_t kept = accepted.empty() ? p.tokens : accepted[i];
    if (p.length + kept < rules.tokens || book.diagonals(p.slot) != nullptr) continue;
    completed_balance& c = result.emplace_back(completed_balance{i, {}});
    const auto& before = book.slots()[p.slot].samples;
    for (std::int64_t j = rules.sink / learning_stride; j < rules.samples(rules.tokens); ++j) {
      const std::int64_t added = j - step.learning[i].first;
      c.samples.push_back(added < 0 ? before[static_cast<std::size_t>(j)].get()
                                    : step.learning[i].samples[static_cast<std::size_t>(added)].get());
    }
  }
  return result;
}

/// The stream that encodes, and the events that order it.
///
/// what        encoding waits for all that the caller's stream had when it was committed; attention of a layer waits for the last
///             encoding of that layer; pages are given back only behind all encoding. So what a step sees follows from lengths alone
class step_encoder {
 public:
  step_encoder() = default;
  step_encoder(const device& exec, int layers, bool encodes) {
    if (!encodes) return;
    side_ = own_stream(exec.ordinal);
    committed_ = event(exec.ordinal);
    for (int l = 0; l < layers; ++l) layers_.push_back({event(exec.ordinal), false});
  }

  /// Fixes balances and encodes pages. Nothing of it can be seen before the sequences grow: it may throw.
  ///
  /// frame_of    number under which the rows of a page lie
  /// first_layer, layers   of which: all of them where a balance is completed
  template <class Spec, class FrameOf>
  void encode(const device& exec, const cache_parts<Spec>& of, const step_plan& step, std::span<const std::int64_t> accepted,
              const FrameOf& frame_of, int first_layer, int layers) {
    using layout = typename Spec::layout_type;
    const auto group = static_cast<std::size_t>(of.retrieving_group());
    const std::vector<entering_page> pages = entering_pages<layout>(step.reserved, Spec::zones, accepted, step.items[group]);
    const std::vector<completed_balance> completed = completed_balances(of.balances, step, accepted);
    if (pages.empty() && completed.empty()) return;
    std::vector<const float*> diagonals(step.reserved.parts.size());  // of all layers
    if (of.balances.on()) {
      for (std::size_t i = 0; i < diagonals.size(); ++i) diagonals[i] = of.balances.diagonals(step.reserved.parts[i].slot);
      for (const completed_balance& c : completed) diagonals[c.entry] = step.learning[c.entry].balance->diagonals.get();
    }
    std::vector<page_to_encode> list;      // (layers that retrieve, pages)
    std::vector<const bf16*> energies;     // (layers that retrieve, completed, samples)
    std::vector<std::int32_t> key_pages;   // (completed, pages of the tokens that are learned from)
    const learning_rules& rules = of.balances.rules();
    const std::int64_t learned_pages = ceil_div(rules.tokens, layout::shape.tokens), first = rules.sink / learning_stride;
    for (const completed_balance& c : completed)
      std::transform(step.items[group][c.entry].pages, step.items[group][c.entry].pages + learned_pages, std::back_inserter(key_pages),
                     frame_of);
    const auto some = std::span(of.layers).subspan(static_cast<std::size_t>(first_layer), static_cast<std::size_t>(layers));
    for (const auto& layer : some) {
      if (!layer.retrieves) continue;
      for (const entering_page& p : pages) {
        const float* const learned = diagonals[p.entry];
        list.push_back(
            {frame_of(step.items[group][p.entry].pages[p.page]), p.id, learned != nullptr ? learned + rules.at(layer.ordinal) : nullptr});
      }
      for (const completed_balance& c : completed) {
        for (const query_sample* sample : c.samples)
          energies.push_back(sample->seen[static_cast<std::size_t>(layer.ordinal)] != 0 ? sample->energies.get() : nullptr);
      }
    }
    const device side = beside(exec);
    const commit_lists at =
        place(side, std::ssize(list), std::ssize(energies), std::ssize(key_pages), std::ssize(completed) * std::ssize(layers_));
    std::vector<balance_to_fix> to_fix;    // (layers that retrieve, completed)
    const std::int64_t samples = rules.samples(rules.tokens) - first;
    for (std::int64_t l = 0; !completed.empty() && l < rules.layers; ++l) {
      for (std::int64_t i = 0; i < std::ssize(completed); ++i) {
        const balance_table& table = *step.learning[completed[static_cast<std::size_t>(i)].entry].balance;
        to_fix.push_back({at.key_pages + i * learned_pages, at.energies + (l * std::ssize(completed) + i) * samples, samples,
                          table.diagonals.get(), seen_on_device(rules, table)});
      }
    }
    const upload_piece pieces[] = {piece(at.pages, list), piece(at.energies, energies), piece(at.key_pages, key_pages),
                                   piece(at.to_fix, to_fix)};
    uploads_.enqueue(side, pieces);
    std::int64_t listed = 0;  // layers before this one
    for (const auto& layer : some) {
      if (!layer.retrieves) continue;
      const row_view<const typename layout::element_type> rows(layer.rows);
      fix_balances(side, rows, at.to_fix + listed * std::ssize(completed), std::ssize(completed), rules.sink, rules.tokens, rules.pairs,
                   layer.ordinal);
      encode_pages<Spec::sketch.bits>(side, Spec::sketch, rows, key_columns_of(layer.side), at.pages + listed * std::ssize(pages),
                                      std::ssize(pages));
      if constexpr (any(Spec::others))
        encode_values<Spec::others.value_bits>(side, Spec::sketch, rows, key_columns_of(layer.side), value_columns_of(layer.side),
                                               at.pages + listed * std::ssize(pages), std::ssize(pages));
      ++listed;
      mark_encoded(side, layer.ordinal);
    }
    for (const completed_balance& c : completed) c.mark_seen(rules, *step.learning[c.entry].balance);
  }

  /// Packs the blocks of tokens that enter into semantic pages. Nothing of it can be seen before the sequences grow: it may throw.
  ///
  /// frame_of    number under which the rows of a page lie
  /// promoted    tokens of the tree, where one is kept
  template <class Spec, class FrameOf>
  void encode_blocks(const device& exec, const cache_parts<Spec>& of, const step_plan& step, std::span<const std::int64_t> accepted,
                     const FrameOf& frame_of, const promoted_tokens& promoted) {
    using layout = typename Spec::layout_type;
    constexpr dci_shape shape = Spec::index_type::shape;
    constexpr bool codes = codes_means(shape, layout::shape.tokens);
    constexpr std::int64_t P = layout::shape.tokens, seen = learns_metric(shape) ? metric_tokens : shape.block;
    const std::span<const batch_item> items = step.items[static_cast<std::size_t>(of.retrieving_group())];
    const std::vector<entering_blocks> entering = blocks_of(step.reserved, Spec::zones, P, accepted, items);
    if (entering.empty()) return;
    std::vector<std::int32_t> pages;      // those that each run of blocks reads
    std::vector<std::size_t> pages_at;    // (blocks) where they begin
    std::vector<block_to_index> list;
    std::vector<page_to_encode> coded;    // pages of the blocks, where codes are kept
    std::vector<run_to_link> runs;        // where links are made
    std::vector<side_by_side> groups;
    for (const entering_blocks& run : entering) {
      const std::int64_t end = (run.first + run.count) * shape.block;
      const std::int64_t first = keeps_links(shape) ? 0 : std::max<std::int64_t>((run.first + 1) * shape.block - seen, 0) / P;
      if (groups.empty() || (keeps_links(shape) && run.follows)) groups.push_back({std::ssize(list), 0, std::ssize(runs), 0});
      for (std::int64_t b = 0; b < run.count; ++b)
        list.push_back({nullptr, first, run.first + b, static_cast<std::int32_t>(groups.back().runs), static_cast<std::int32_t>(b)});
      runs.push_back({nullptr, end});
      groups.back().blocks += run.count;
      ++groups.back().runs;
      pages_at.insert(pages_at.end(), static_cast<std::size_t>(run.count), pages.size());
      pages.insert(pages.end(), items[run.entry].pages + first, items[run.entry].pages + end / P);
    }
    if constexpr (Spec::coded) {
      for (const entering_page& p : entering_pages<layout>(step.reserved, Spec::zones, accepted, items))
        coded.push_back({frame_of(items[p.entry].pages[p.page]), p.id, nullptr});
    }
    std::vector<std::int32_t> frames;  // of these pages, where they lie under other numbers
    if constexpr (offloads<layout>()) std::transform(pages.begin(), pages.end(), std::back_inserter(frames), frame_of);
    std::vector<std::size_t>
        first_at;  // (blocks) where the first block of the sequence begins in `pages`, whose means codes are relative to
    for (const entering_blocks& run : entering) {
      if (!codes) break;
      first_at.insert(first_at.end(), static_cast<std::size_t>(run.count), pages.size());
      pages.insert(pages.end(), items[run.entry].pages, items[run.entry].pages + shape.block / P);
    }
    const device side = beside(exec);
    block_lists at;
    const auto parts = [&](scratch_parts memory) {
      at = {memory.take<block_to_index>(std::ssize(list)), memory.take<std::int32_t>(std::ssize(pages)),
            memory.take<std::int32_t>(std::ssize(frames)), memory.take<page_to_encode>(std::ssize(coded)),
            memory.take<run_to_link>(std::ssize(runs)),    {}};
      if (keeps_links(shape)) at.links = link_arrays(memory, std::ssize(list), std::ssize(runs), of.geometry.kv_heads, promoted);
      return memory.used;
    };
    memory_.reserve(side, parts({}), false);
    parts({memory_.data()});
    for (std::size_t i = 0, run = 0; i < list.size(); ++i) {
      list[i].pages = at.pages + pages_at[i];
      if (!frames.empty()) list[i].frames = at.frames + pages_at[i];
      if (codes) list[i].first_block = at.pages + first_at[i];
      if (list[i].before == 0) runs[run++].pages = list[i].pages;
    }
    const upload_piece pieces[] = {piece(at.blocks, list), piece(at.pages, pages), piece(at.frames, frames), piece(at.coded, coded),
                                   piece(at.runs, runs)};
    uploads_.enqueue(side, pieces);
    for (const auto& layer : of.layers) {
      if (!layer.retrieves) continue;
      const row_view<const typename layout::element_type> rows(layer.rows);
      const energy_column energies = learns_metric(shape) ? energies_of(layer.side, layout::shape) : energy_column{};
      for (const side_by_side& g : groups) {
        if constexpr (keeps_links(shape))
          link_blocks(side, shape, rows, layer.side[column_members], layer.side[column_links], Spec::zones.sink, any(Spec::others),
                      promoted, at.blocks + g.first, g.blocks, at.runs + g.first_run, g.runs, at.links);
        index_blocks(side, shape, rows, layer.side[column_members], layer.side[column_member_means], energies, of.geometry.rope,
                     Spec::zones.sink, any(Spec::others), at.blocks + g.first, g.blocks, layer.side[column_links]);
      }
      if constexpr (lines_of(shape) > 0) {
        place_keys(side, shape, rows, layer.side[column_members], layer.side[column_places], Spec::zones.sink, any(Spec::others), at.blocks,
                   std::ssize(list));
      }
      if constexpr (codes) {
        code_means(side, shape, layout::shape, layer.side[column_members], layer.side[column_member_means], layer.side[column_mean_codes],
                   at.blocks, std::ssize(list));
      }
      if constexpr (Spec::coded)
        encode_pages<Spec::sketch.bits>(side, Spec::sketch, rows, codes_of(layer.side), at.coded, std::ssize(coded));
      if constexpr (any(Spec::others))
        encode_page_values<Spec::others.value_bits>(side, shape, Spec::sketch, rows, layer.side[column_members], codes_of(layer.side),
                                                    page_values_of(layer.side), Spec::zones.sink, at.blocks, std::ssize(list));
      mark_encoded(side, layer.ordinal);
    }
  }

  /// Later work of the caller's stream waits for what was encoded of a layer; of a graph, whatever that is when the graph runs.
  void hold(const device& exec, int ordinal, bool replays) {
    if (std::cmp_greater_equal(ordinal, layers_.size())) return;  // nothing is ever encoded
    encoded& last = layers_[static_cast<std::size_t>(ordinal)];
    if (!replays && !last.pending) return;
    last.done.hold(exec);
    last.pending = last.pending && replays;
  }

  /// Later work of the caller's stream waits for all that was encoded, and so does what comes later still.
  void hold_all(const device& exec) const {
    for (const encoded& last : layers_) {
      if (last.pending) last.done.hold(exec);
    }
  }

  /// The same for all layers, once: not for a graph, which would wait again whenever it is launched, and the stream behind it never.
  void finish(const device& exec) {
    require_uncaptured(exec);
    for (std::size_t l = 0; l < layers_.size(); ++l) hold(exec, static_cast<int>(l), false);
  }

 private:
  struct encoded {
    event done;
    bool pending = false;
  };

  template <class T>
  static upload_piece piece(T* to, const std::vector<T>& from) {
    return {to, from.data(), static_cast<std::int64_t>(from.size() * sizeof(T))};
  }

  /// The stream of the cache's own, behind all that the caller's has.
  device beside(const device& exec) {
    device side = exec;
    side.stream = side_.get();
    committed_.record(exec);
    committed_.hold(side);
    return side;
  }
  void mark_encoded(const device& side, int ordinal) {
    encoded& last = layers_[static_cast<std::size_t>(ordinal)];
    last.done.record(side);
    last.pending = true;
  }

  /// Where the lists of a commit lie on the device; of one that packs blocks.
  struct block_lists {
    block_to_index* blocks = nullptr;
    std::int32_t* pages = nullptr;
    std::int32_t* frames = nullptr;
    page_to_encode* coded = nullptr;
    run_to_link* runs = nullptr;
    link_arrays links;
  };
  /// Blocks, and runs of blocks, that no link of the others leads to.
  struct side_by_side {
    std::int64_t first, blocks, first_run, runs;
  };
  /// The same of one that encodes pages.
  struct commit_lists {
    page_to_encode* pages = nullptr;
    const bf16** energies = nullptr;
    std::int32_t* key_pages = nullptr;
    balance_to_fix* to_fix = nullptr;
  };
  commit_lists place(const device& side, std::int64_t pages, std::int64_t energies, std::int64_t key_pages, std::int64_t to_fix) {
    commit_lists at;
    const auto parts = [&](scratch_parts memory) {
      at = {memory.take<page_to_encode>(pages), memory.take<const bf16*>(energies), memory.take<std::int32_t>(key_pages),
            memory.take<balance_to_fix>(to_fix)};
      return memory.used;
    };
    memory_.reserve(side, parts({}), false);
    parts({memory_.data()});
    return at;
  }

  own_stream side_;
  event committed_;
  std::vector<encoded> layers_;  // by ordinal
  upload_ring uploads_;
  device_scratch memory_;
};

}  // namespace kvx
