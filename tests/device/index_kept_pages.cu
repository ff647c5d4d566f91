// Selections that are used again lie on the device as they do on the host, whatever becomes of the sequences that they were found in.

#include <kvx/cuda/kept_selections.cuh>
#include <kvx/index/cuda/kept_pages.cuh>
#include <kvx/index/host/kept_pages.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "device/device_array.cuh"

using namespace kvx;
using kvx::test::device_array;

namespace {

constexpr int layers = 5, heads = 2, sequences = 3, most_found = 67;
constexpr std::int64_t wanted = 40;

/// What the search of a unit finds: other pages in every layer of every step, sometimes none, sometimes more than are kept. Scores tie.
struct made_up {
  std::uint32_t search = 0;

  KVX_HD constexpr std::uint32_t mixed(std::int64_t unit, int i) const {
    return (search * 131 + static_cast<std::uint32_t>(unit) * 31 + static_cast<std::uint32_t>(i)) * 2654435761u >> 8;
  }
  KVX_HD constexpr int count(std::int64_t unit) const { return static_cast<int>(mixed(unit, -1) % (most_found + 1)); }
  KVX_HD constexpr std::int32_t page(std::int64_t unit, int i) const { return 3 * i + static_cast<std::int32_t>(mixed(unit, i) % 3); }
  KVX_HD constexpr float score(std::int32_t page) const { return static_cast<float>((static_cast<std::uint32_t>(page) * 7 + search) % 11); }
};

/// shapes      pages (units, most_found); counts (units): of pages taken, -1 of units that search
template <int Threads>
__global__ void __launch_bounds__(Threads)
    use_pages_kernel(kept_pages_of_layer kept, device_batch batch, made_up what, std::int32_t* pages, std::int32_t* counts) {
  const std::int64_t unit = blockIdx.x, token = unit / heads;
  const std::int32_t entry = batch.entry_of[token];
  const batch_item& item = batch.items[entry];
  const std::int64_t position = item.length - item.queries + token - item.first;
  const kept_use use = kept.use_of(entry, unit % heads, position, item.queries);
  if (use.waits) return;
  std::int32_t* const found = pages + unit * most_found;
  if (use.from != nullptr) {
    const std::int64_t count = take_kept<Threads>(*use.from, wanted, found);
    if (threadIdx.x == 0) counts[unit] = static_cast<std::int32_t>(count);
    return;
  }
  const int count = what.count(unit);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += Threads) found[i] = what.page(unit, i);
  __syncthreads();
  if (use.to != nullptr) keep_pages<Threads>(*use.to, position, found, count, [&](std::int32_t page) { return what.score(page); });
}

struct new_tokens {
  std::int32_t slot;
  std::int64_t count;
};

struct both {
  test::test_stream stream;
  device exec{.stream = stream.get()};
  page_reuse reuse;
  kept_selections on_device;
  kept_pages on_host;
  std::int64_t lengths[sequences] = {};
  std::uint32_t searches = 0;
  std::int64_t taken = 0, searched = 0, apart = 0;

  explicit both(const page_reuse& r) : reuse(r), on_device(exec, r, sequences, layers, heads), on_host(r, sequences, layers, heads) {}

  void cut(std::int32_t slot, std::int64_t tokens) {
    on_device.cut(exec, static_cast<std::uint32_t>(slot), tokens);
    on_host.cut(static_cast<std::uint32_t>(slot), tokens);
    lengths[slot] = tokens;
  }

  /// What each unit of a layer takes, and keeps what the others find.
  void use_on_host(int layer, const std::vector<new_tokens>& step, const made_up& what, std::vector<std::vector<std::int32_t>>& takes) {
    for (const bool follows : {false, true}) {
      std::int64_t unit = 0;
      for (const new_tokens& e : step) {
        const auto slot = static_cast<std::uint32_t>(e.slot);
        for (std::int64_t p = lengths[slot]; p < lengths[slot] + e.count; ++p) {
          for (int h = 0; h < heads; ++h, ++unit) {
            if ((reuse.source_position(p) != p) != follows || e.count > most_keeping_tokens) continue;
            const std::span<const std::int32_t> from = on_host.find(slot, layer, h, p);
            auto& pages = takes[static_cast<std::size_t>(unit)];
            pages.assign(from.begin(), from.end());
            if (!pages.empty()) continue;
            for (int i = 0; i < what.count(unit); ++i) pages.push_back(what.page(unit, i));
            std::stable_sort(pages.begin(), pages.end(), [&](auto a, auto b) { return what.score(a) > what.score(b); });
            on_host.put(slot, layer, h, p, pages);
            pages.clear();
          }
        }
      }
    }
    for (auto& pages : takes) {
      if (std::ssize(pages) > wanted) pages.resize(wanted);
      std::sort(pages.begin(), pages.end());
    }
  }

  /// A step in which these layers attend; nothing is committed.
  void step(const std::vector<new_tokens>& step, const std::vector<int>& attending) {
    std::vector<std::int32_t> slots, entry_of;
    std::vector<batch_item> items;
    for (const new_tokens& e : step) {
      items.push_back({nullptr, lengths[e.slot] + e.count, e.count, std::ssize(entry_of)});
      entry_of.insert(entry_of.end(), static_cast<std::size_t>(e.count), static_cast<std::int32_t>(slots.size()));
      slots.push_back(e.slot);
      on_host.begin(static_cast<std::uint32_t>(e.slot), lengths[e.slot]);
    }
    const device_array<std::int32_t> d_slots(slots), d_entries(entry_of);
    const device_array<batch_item> d_items(items);
    const device_batch batch{d_items.data(), d_entries.data(), std::ssize(entry_of), static_cast<int>(items.size())};
    on_device.begin(exec, d_slots.data(), batch);
    const std::size_t units = entry_of.size() * heads;
    for (const int layer : attending) {
      const made_up what{++searches};
      const device_array<std::int32_t> pages(units * most_found), counts(units);
      kept_pages_of_layer kept{on_device.arrays(), d_slots.data(), layer};
      for (const bool follows : {false, true}) {
        kept.follows = follows;
        constexpr int threads = 64;
        launch(exec, {.grid = dim3(static_cast<unsigned>(units)), .threads = threads}, use_pages_kernel<threads>, kept, batch, what,
               pages.data(), counts.data());
      }
      stream.wait();
      std::vector<std::vector<std::int32_t>> takes(units);
      use_on_host(layer, step, what, takes);
      const auto found = pages.read(), of_units = counts.read();
      for (std::size_t u = 0; u < units; ++u) {
        const auto* const first = found.data() + u * most_found;
        const bool same = takes[u].empty() ? of_units[u] == -1
                                           : of_units[u] == std::ssize(takes[u]) && std::equal(takes[u].begin(), takes[u].end(), first);
        apart += same ? 0 : 1;
        ++(takes[u].empty() ? searched : taken);
      }
    }
    stream.wait();
  }
  /// The same, and so many tokens of each sequence are accepted.
  void step(const std::vector<new_tokens>& of, const std::vector<int>& attending, std::int64_t accepted) {
    step(of, attending);
    for (const new_tokens& e : of) lengths[e.slot] += std::min(e.count, accepted);
  }
};

const std::vector<int> all_layers = {0, 1, 2, 3, 4};

}  // namespace

TEST_CASE("a dropped step, a cut, a fork and a closed sequence leave nothing that another takes") {
  both b({.layers = 2, .steps = 4});
  const auto takes = [&](std::int32_t slot, int layer) {
    const std::int64_t before = b.taken;
    b.step({{slot, 1}}, {layer});
    CHECK(b.apart == 0);
    return b.taken - before;
  };
  b.cut(1, 400);
  CHECK(takes(1, 1) == 0);  // the layer before has not searched
  b.step({{1, 1}}, {0});
  CHECK(takes(1, 1) == 0);  // that step is dropped
  b.step({{1, 1}}, {0, 1}, 1);
  CHECK(b.taken > 0);
  CHECK(takes(1, 1) > 0);  // position 401
  CHECK(takes(2, 1) == 0);
  b.cut(2, 401);
  CHECK(takes(2, 0) == 0);  // a fork
  b.cut(1, 400);
  CHECK(takes(1, 1) == 0);
  b.step({{1, 1}}, {0}, 1);
  b.cut(1, 0);
  b.cut(1, 401);
  CHECK(takes(1, 0) == 0);  // another sequence in the same place
  b.cut(1, 0);
  b.step({{1, 1}}, {0}, 1);
  CHECK(takes(1, 0) > 0);
  b.cut(1, 0);
  b.cut(1, 1);
  CHECK(takes(1, 0) == 0);

  // Position 480 goes where 440 and 400 went before it: its own layer has not searched there, or no layer of so large a step.
  b.cut(1, 440);
  b.step({{1, 1}}, {0}, 1);
  CHECK(takes(1, 0) > 0);
  b.cut(1, 480);
  CHECK(takes(1, 1) == 0);
  b.step({{1, 33}}, {0}, 1);
  CHECK(takes(1, 0) == 0);
}

TEST_CASE("random histories: what is taken is what the host takes") {
  for (const page_reuse reuse : {page_reuse{2, 1}, page_reuse{1, 3}, page_reuse{2, 5}, page_reuse{3, 32}}) {
    CAPTURE(reuse.layers);
    CAPTURE(reuse.steps);
    both b(reuse);
    CHECK(b.on_device.bytes() == kept_bytes(reuse, sequences, layers, heads));
    std::mt19937 random(static_cast<unsigned>(reuse.steps));
    const auto below = [&](unsigned n) { return static_cast<std::int64_t>(random() % n); };
    for (int i = 0; i < 120; ++i) {
      const auto slot = static_cast<std::int32_t>(below(sequences));
      const std::int64_t dice = below(20);
      if (dice == 0) b.cut(slot, below(2) * below(90));  // closed; another is opened, or forked from some
      if (dice == 1) b.cut(slot, std::max<std::int64_t>(0, b.lengths[slot] - below(50)));
      std::vector<new_tokens> step;
      for (std::int32_t s = sequences; s-- > 0;) {
        if (below(2) == 0) step.push_back({s, below(40) == 0 ? 30 + below(5) : below(6) == 0 ? 1 + below(8) : 1});
      }
      std::vector<int> attending;
      for (const int layer : all_layers) {
        if (below(5) != 0) attending.push_back(layer);
      }
      b.step(step, attending, below(8) == 0 ? 0 : below(8) == 0 ? below(4) : 40);
    }
    CHECK(b.apart == 0);
    CHECK(b.taken > 300);
    CHECK(b.searched > 300);
  }
}
