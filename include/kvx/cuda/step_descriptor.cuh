#pragma once
// What the kernels of a step read of its batch: one block of device memory at a fixed address, filled by `begin`.

#include <kvx/attend/retrieve.hpp>
#include <kvx/backend/cuda/upload.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/element.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/index/promoted_tokens.hpp>
#include <kvx/layout/batch_item.hpp>
#include <kvx/layout/device_batch.hpp>
#include <kvx/layout/sequence_book.hpp>
#include <kvx/learned_balance.hpp>
#include <kvx/step.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace kvx {

/// Addresses of a descriptor, for batches of at most `entries` entries and `tokens` new tokens.
///
/// items       (groups, entries) the batch as each group of layers sees it; where rows may lie far, behind them under their frames
/// prompts     (entries) the same for retrieving layers, entries that retrieve without new tokens
/// runs        (entries) the same; `first` counts from the first token of the entry's run, see retrieve_run
/// row_runs    (entries) the same under the frames of rows, where these may lie far; so are prompts
/// entry_of    (tokens); run_entry_of (tokens) counts from the first entry of the run
/// balances    (entries) diagonals of all layers, null for none
/// samples     (tokens) energies of all layers that the query of a token is to fill, null for none
/// slots       (entries) of the sequences
struct step_addresses {
  batch_item* items = nullptr;
  batch_item* prompts = nullptr;
  batch_item* runs = nullptr;
  batch_item* row_runs = nullptr;
  std::int32_t* entry_of = nullptr;
  std::int32_t* run_entry_of = nullptr;
  const float** balances = nullptr;
  bf16** samples = nullptr;
  std::int32_t* slots = nullptr;

  step_addresses() = default;
  step_addresses(scratch_parts& s, std::int64_t groups, std::int64_t entries, std::int64_t tokens)
      : items(s.take<batch_item>(groups * entries)),
        prompts(s.take<batch_item>(entries)),
        runs(s.take<batch_item>(entries)),
        row_runs(s.take<batch_item>(entries)),
        entry_of(s.take<std::int32_t>(tokens)),
        run_entry_of(s.take<std::int32_t>(tokens)),
        balances(s.take<const float*>(entries)),
        samples(s.take<bf16*>(tokens)),
        slots(s.take<std::int32_t>(entries)) {}
};

/// A descriptor: steps that are open side by side have one each, the first that is free. So with one step open at a time, it is always
/// the same, and a graph that was captured in one step finds the next.
struct step_descriptor {
  device_block memory;
  step_addresses at;
  std::int64_t entries = 0;
  bool taken = false;
};

/// Entries that follow each other, all with few new tokens or all with many: what is computed together where layers retrieve.
struct retrieve_run {
  std::size_t entry = 0;
  std::size_t entries = 0;
  std::int64_t token = 0;
  std::int64_t tokens = 0;
  std::int64_t most_queries = 0;
  bool prompt = false;
};

/// What the device's runner keeps of an open step.
///
/// longest     tokens of a sequence now; planned: that one may have when launches are replayed
/// replayable  no entry is a prompt: steps of this shape are what one captures, so they are planned for the longest sequences
/// learns      queries of some token are learned from
/// apart       rows of layers that retrieve lie under other numbers than their columns
/// promoted    tokens of the tree, where the cache keeps one
struct device_step {
  std::shared_ptr<step_descriptor> descriptor;
  std::int64_t tokens = 0;
  int entries = 0;
  std::int64_t most_queries = 0;
  std::int64_t longest = 0;
  std::int64_t planned = 0;
  bool replayable = false;
  bool learns = false;
  bool apart = false;
  promoted_tokens promoted;
  std::vector<retrieve_run> runs;

  explicit device_step(std::shared_ptr<step_descriptor> of) : descriptor(std::move(of)) { descriptor->taken = true; }
  device_step(const device_step&) = delete;
  device_step& operator=(const device_step&) = delete;
  ~device_step() { descriptor->taken = false; }

  device_batch batch(int group, bool replays) const {
    return {descriptor->at.items + group * descriptor->entries, descriptor->at.entry_of, tokens, entries, most_queries, bound(replays)};
  }
  device_batch prompts(bool replays) const {
    return {descriptor->at.prompts, descriptor->at.entry_of, tokens, entries, most_queries, bound(replays)};
  }
  device_batch run(const retrieve_run& r, bool replays) const { return run_of(descriptor->at.runs, r, replays); }
  device_batch row_run(const retrieve_run& r, bool replays) const {
    return run_of(apart ? descriptor->at.row_runs : descriptor->at.runs, r, replays);
  }
  device_batch run_of(const batch_item* items, const retrieve_run& r, bool replays) const {
    return {items + r.entry, descriptor->at.run_entry_of + r.token, r.tokens, static_cast<int>(r.entries), r.most_queries, bound(replays)};
  }
  std::int64_t bound(bool replays) const { return replays ? planned : longest; }
};

/// The runs of a batch: none longer than `most` tokens if its first entry is not.
inline std::vector<retrieve_run> retrieve_runs(std::span<const reservation::part> entries, std::int64_t most) {
  std::vector<retrieve_run> runs;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const reservation::part& p = entries[i];
    const bool prompt = p.tokens > most_retrieving_tokens;
    if (runs.empty() || runs.back().prompt != prompt || runs.back().tokens + p.tokens > most) runs.push_back({i, 0, p.first, 0, 0, prompt});
    retrieve_run& run = runs.back();
    ++run.entries;
    run.tokens += p.tokens;
    run.most_queries = std::max(run.most_queries, p.tokens);
  }
  return runs;
}

/// The host's side of a descriptor, until it is uploaded.
struct step_image {
  std::vector<batch_item> items;            // (groups, entries)
  std::vector<batch_item> prompts;          // (entries)
  std::vector<batch_item> runs;             // (entries)
  std::vector<batch_item> row_runs;         // (entries)
  std::vector<std::int32_t> entry_of;       // (tokens)
  std::vector<std::int32_t> run_entry_of;   // (tokens)
  std::vector<bf16*> samples;               // (tokens)
  std::vector<std::int32_t> slots;          // (entries)

  /// `items` are there; the rest follows from the plan. `columns`, `rows`: the groups of items of layers that retrieve.
  void fill(const step_plan& plan, std::span<const retrieve_run> of, std::size_t columns, std::size_t rows) {
    const auto entries = plan.reserved.parts.size(), tokens = static_cast<std::size_t>(plan.reserved.tokens);
    const auto of_group = [&](std::size_t g) {
      const auto first = items.begin() + static_cast<std::ptrdiff_t>(g * entries);
      return std::vector<batch_item>(first, first + static_cast<std::ptrdiff_t>(entries));
    };
    runs = of_group(columns);
    prompts = of_group(rows);
    if (rows != columns) row_runs = prompts;
    for (const reservation::part& p : plan.reserved.parts) slots.push_back(static_cast<std::int32_t>(p.slot));
    entry_of.resize(tokens);
    run_entry_of.resize(tokens);
    for (const retrieve_run& r : of) {
      for (std::size_t i = r.entry; i < r.entry + r.entries; ++i) {
        const reservation::part& p = plan.reserved.parts[i];
        std::fill_n(entry_of.begin() + static_cast<std::ptrdiff_t>(p.first), p.tokens, static_cast<std::int32_t>(i));
        std::fill_n(run_entry_of.begin() + static_cast<std::ptrdiff_t>(p.first), p.tokens, static_cast<std::int32_t>(i - r.entry));
        runs[i].first -= r.token;
        if (rows != columns) row_runs[i].first -= r.token;
        if (!r.prompt) prompts[i].queries = 0;
      }
    }
  }

  /// Where the queries that are learned from go.
  void fill_samples(const step_plan& plan) {
    samples.assign(static_cast<std::size_t>(plan.reserved.tokens), nullptr);
    for (std::size_t i = 0; i < plan.learning.size(); ++i) {
      const reservation::part& p = plan.reserved.parts[i];
      const learning_entry& learned = plan.learning[i];
      for (std::size_t j = 0; j < learned.samples.size(); ++j) {
        const std::int64_t position = (learned.first + static_cast<std::int64_t>(j) + 1) * learning_stride - 1;
        samples[static_cast<std::size_t>(p.first + position - p.length)] = learned.samples[j]->energies.get();
      }
    }
  }
};

}  // namespace kvx
