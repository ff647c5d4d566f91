#pragma once
// Searches for semantic pages by the device and by the host, of a ragged batch of sequences of keys whose logits are exact.

#include <kvx/attend/cuda/page_call.cuh>
#include <kvx/index/cuda/page_search.cuh>
#include <kvx/index/cuda/promoted_tokens.cuh>

#include <kvx/index/dci_lists.hpp>
#include <kvx/index/host/dci_tree.hpp>
#include <kvx/index/host/page_proposals.hpp>
#include <kvx/index/host/page_search.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <vector>

#include "device/batch_on_device.cuh"
#include "device/device_array.cuh"
#include "support/paged_rows.hpp"

namespace kvx::test {

struct search_case {
  dci_shape shape{.block = 32};
  int page_tokens = 8;
  int dim = 16;
  int group = 3;
  int heads = 1;
  int sink = 8;
  std::vector<std::int64_t> lengths{680, 300, 30};
  std::int64_t new_tokens = 1;
  page_options options{.keep = 40};
  group_rule rule = {};
  bool interleave = false;
  std::int64_t whole_below = 0;
  bool residents = true;
  float scale = .125f;
  unsigned seed = 1;
};

/// Keys of small integers in clusters that come again, means of powers of two of them: all logits are exact in float.
class search_world {
 public:
  explicit search_world(const search_case& c)
      : c_(c),
        random_(c.seed),
        rows_({.heads = c.heads, .page_tokens = c.page_tokens, .key_dim = c.dim, .value_dim = 4, .lengths = c.lengths}) {
    std::vector<std::vector<int>> centres(9, std::vector<int>(static_cast<std::size_t>(c.dim)));
    for (auto& centre : centres) {
      for (int& x : centre) x = below(9) - 4;
    }
    std::int64_t pages = 0;
    for (std::size_t s = 0; s < c.lengths.size(); ++s) {
      pages += std::ssize(rows_.tables()[s]);
      for (std::int64_t t = 0; t < c.lengths[s]; ++t) {
        for (int h = 0; h < c.heads; ++h) {
          const auto& centre = centres[static_cast<std::size_t>(below(9))];
          for (int d = 0; d < c.dim; ++d)
            rows_.key(s, t, h)[d] = round_to<bf16>(static_cast<float>(centre[static_cast<std::size_t>(d)] + below(3) - 1));
        }
      }
    }
    const auto columns = dci_columns(c.shape, {c.page_tokens, c.dim, 4});
    for (const dci_column k : {column_members, column_member_means, column_links, column_places, column_mean_codes}) {
      memory_[k].assign(static_cast<std::size_t>(columns[k].pitch() * pages * c.heads), std::byte{0xff});
      arrays_[k] = {memory_[k].data(), columns[k].pitch(), c.heads, columns[k].pitch() * pages};
    }
    tokens_ = c.new_tokens * std::ssize(c.lengths);
    for (std::int64_t i = 0; i < tokens_ * c.heads * c.group * c.dim; ++i) queries_.push_back(static_cast<float>(below(7) - 3));
    for (std::int64_t i = 0; i < tokens_ * c.heads * c.group; ++i) resident_.push_back(static_cast<float>(below(40)) / 8);
  }

  bf16* key(std::size_t s, std::int64_t t) { return rows_.key(s, t, 0); }
  std::vector<float>& queries() { return queries_; }

  /// Packs all whole blocks; then both search, or only propose pages.
  void check(bool proposals_alone = false) {
    index();
    const rows_on_device<bf16> rows(rows_);
    std::vector<batch_item> items;
    for (std::size_t s = 0; s < c_.lengths.size(); ++s) items.push_back(rows_.item(s, c_.new_tokens, std::ssize(items) * c_.new_tokens));
    const batch_on_device batch(rows.tables(), items);
    const device_array<std::byte> members(memory_[column_members]), means(memory_[column_member_means]), links(memory_[column_links]),
        on_lines(memory_[column_places]), codes(memory_[column_mean_codes]);
    const device_array<float> queries(queries_), resident(resident_);
    page_search_call<bf16, page_budget> call;
    static_cast<page_search_shape<page_budget>&>(call) =
        page_search_of(c_.shape, c_.rule, c_.interleave, {c_.page_tokens, c_.dim, 4}, cut(), c_.heads, c_.heads * c_.group, tokens_,
                       batch.view().longest, c_.options, false, {.coded = false, .tail = false}, c_.whole_below);
    call.by_page = true;
    call.rows = rows.view();
    call.members = arrays_[column_members];
    call.members.data = members.data();
    call.means = arrays_[column_member_means];
    call.means.data = means.data();
    call.links = arrays_[column_links];
    call.links.data = links.data();
    call.places = arrays_[column_places];
    call.places.data = on_lines.data();
    if (codes_means(c_.shape, c_.page_tokens)) {
      call.mean_codes = arrays_[column_mean_codes];
      call.mean_codes.data = codes.data();
    }
    call.batch = batch.view();
    call.plain = queries.data();
    call.resident = c_.residents ? resident.data() : nullptr;
    call.scale = c_.scale;
    call.wide = rows_on_16(call.rows.key);
    scratch_parts size;
    page_search_arrays(call, size);
    const device_array<std::byte> memory(static_cast<std::size_t>(size.used));
    scratch_parts parts{memory.data()};
    call.to = page_search_arrays(call, parts);
    const device_array<unsigned> tickets(std::vector<unsigned>(static_cast<std::size_t>(call.units()), 0));
    call.to.tickets = tickets.data();
    const test_stream stream;
    const promoted_on_device promoted(device{.stream = stream.get()}, c_.shape, keeps_links(c_.shape) ? batch.view().longest : 0);
    call.promoted = promoted.tokens();
    if (proposals_alone) {
      propose_pages(device{.stream = stream.get()}, call);
    } else {
      search_pages(device{.stream = stream.get()}, call);
    }
    stream.wait();
    CHECK(tickets.read() == std::vector<unsigned>(static_cast<std::size_t>(call.units()), 0));
    const auto read = [](const std::int32_t* from, std::int64_t n) {
      std::vector<std::int32_t> all(static_cast<std::size_t>(n));
      kvx::check("cudaMemcpy", cudaMemcpy(all.data(), from, all.size() * 4, cudaMemcpyDeviceToHost));
      return all;
    };
    if (call.proposes()) {
      const std::vector<std::int32_t> proposed = read(call.to.proposed, call.units() * call.to.proposed_pitch);
      for (std::int64_t unit = 0; unit < call.units(); ++unit) {
        const std::int64_t token = unit / c_.heads;
        const std::vector<std::int32_t> here =
            proposals(items[static_cast<std::size_t>(token / c_.new_tokens)], token % c_.new_tokens, unit, call);
        const std::int32_t* const first = proposed.data() + unit * call.to.proposed_pitch;
        CHECK(std::vector<std::int32_t>(first, first + std::ssize(here)) == here);
        long_zones += here.empty() ? 0 : 1;
      }
    }
    if (proposals_alone) return;
    const std::int64_t members_of_units = call.units() * call.to.id_pitch;
    const std::vector<std::int32_t> ids = read(call.to.ids, members_of_units), counts = read(call.to.counts, call.units()),
                                    slots = read(call.to.slots, members_of_units), places = read(call.to.places, members_of_units),
                                    missed = read(call.to.missed, call.units());
    for (std::int64_t unit = 0; unit < call.units(); ++unit) {
      CAPTURE(unit);
      const std::int32_t* const first = ids.data() + unit * call.to.id_pitch;
      const std::int64_t token = unit / c_.heads;
      const batch_item& item = items[static_cast<std::size_t>(token / c_.new_tokens)];
      const std::vector<std::int32_t> there(first, first + counts[static_cast<std::size_t>(unit)]);
      std::vector<std::int32_t> pages;
      const std::vector<std::int32_t> here = found(item, token % c_.new_tokens, unit, call, pages);
      CHECK(there == here);
      check_pages(item, token % c_.new_tokens, unit, pages, there, slots.data() + unit * call.to.id_pitch,
                  places.data() + unit * call.to.id_pitch, missed[static_cast<std::size_t>(unit)]);
      sizes.insert(std::ssize(here));
    }
  }

  std::set<std::int64_t> sizes;  // of what was found
  int long_zones = 0;            // in which pages were proposed

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  zones cut() const { return {.sink = c_.sink, .local = 20, .unit = c_.shape.block}; }
  dci_head<bf16> head_of(std::size_t s, std::int64_t h) const {
    const std::int32_t* const pages = rows_.tables()[s].data();
    return {rows_.view(), arrays_[column_members], arrays_[column_member_means], arrays_[column_links], pages, pages, h, c_.sink,
            false,        arrays_[column_places],  arrays_[column_mean_codes]};
  }

  void index() {
    for (std::size_t s = 0; s < c_.lengths.size(); ++s) {
      for (int h = 0; h < c_.heads; ++h) {
        const std::int64_t blocks = c_.lengths[s] / c_.shape.block;
        scratch_.resize(static_cast<std::size_t>(index_blocks_bytes(c_.shape, c_.page_tokens, c_.dim, c_.lengths[s])) + 64);
        index_blocks<bf16>(host{.threads = 1}, c_.shape, head_of(s, h), 0, blocks, {}, aligned());
        lists_.emplace_back();
        if (keeps_links(c_.shape)) lists_.back().sync(head_of(s, h), 0, blocks * c_.shape.block);
      }
    }
  }

  /// Members page after page: their slots, and their places among the ids.
  void check_pages(const batch_item& item, std::int64_t query, std::int64_t unit, const std::vector<std::int32_t>& pages,
                   const std::vector<std::int32_t>& ids, const std::int32_t* slots, const std::int32_t* places, std::int32_t missed) const {
    const dci_head<bf16> of = head_of(static_cast<std::size_t>(unit / c_.heads / c_.new_tokens), unit % c_.heads);
    const std::int64_t P = c_.page_tokens;
    std::size_t at = 0;
    for (const std::int32_t page : pages) {
      for (int m = 0; m < of.packed(c_.shape, page).count(); ++m, ++at) {
        CHECK(slots[at] == page * P + m);
        REQUIRE(places[at] < std::ssize(ids));
        CHECK(ids[static_cast<std::size_t>(places[at])] ==
              page * P / c_.shape.block * c_.shape.block + of.packed(c_.shape, page).member(m));
      }
    }
    const token_zone z = zone_of(item, 0, cut(), c_.page_tokens, query);
    CHECK(missed == (z.end - z.begin) / P - std::ssize(pages));
  }

  /// The pages that a long zone's codes propose; none where all means are looked at.
  std::vector<std::int32_t> proposals(const batch_item& item, std::int64_t query, std::int64_t unit,
                                      const page_search_shape<page_budget>& shape) {
    const token_zone z = zone_of(item, 0, cut(), c_.page_tokens, query);
    const std::int64_t pages = (z.end - z.begin) / c_.page_tokens, wanted = pages > 0 ? shape.wanted(pages, z.committed) : 0;
    const std::int64_t proposed = proposed_pages(pages, wanted);
    if (proposed == pages) return {};
    scratch_parts size;
    page_proposals(size, c_.dim, c_.group, z.end / c_.page_tokens);
    scratch_.resize(static_cast<std::size_t>(size.used) + 64);
    scratch_parts parts{aligned().data()};
    const page_proposals of(parts, c_.dim, c_.group, z.end / c_.page_tokens);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(pages));
    ids.resize(
        static_cast<std::size_t>(of.propose(c_.shape, head_of(static_cast<std::size_t>(unit / c_.heads / c_.new_tokens), unit % c_.heads),
                                            asked_of(unit, z), proposed, ids.data())));
    return ids;
  }

  page_query asked_of(std::int64_t unit, const token_zone& z) const {
    return {tensor_view<const float, 2>(queries_.data() + unit * c_.group * c_.dim, c_.group, c_.dim),
            c_.residents ? resident_.data() + unit * c_.group : nullptr, c_.scale, z.begin, z.end};
  }

  std::vector<std::int32_t> found(const batch_item& item, std::int64_t query, std::int64_t unit,
                                  const page_search_shape<page_budget>& shape, std::vector<std::int32_t>& result) {
    const token_zone z = zone_of(item, 0, cut(), c_.page_tokens, query);
    const std::int64_t pages = (z.end - z.begin) / c_.page_tokens, wanted = pages > 0 ? shape.wanted(pages, z.committed) : 0;
    result.resize(static_cast<std::size_t>(wanted));
    std::iota(result.begin(), result.end(), static_cast<std::int32_t>(z.begin / c_.page_tokens));
    const dci_head<bf16> of = head_of(static_cast<std::size_t>(unit / c_.heads / c_.new_tokens), unit % c_.heads);
    if (wanted < pages && wanted > 0) {
      const page_search how{.pages = static_cast<int>(wanted),
                            .beam = c_.options.pages.beam,
                            .nearest = c_.options.pages.nearest,
                            .probes = c_.options.pages.probes,
                            .rule = c_.rule,
                            .interleave = c_.interleave};
      scratch_.resize(static_cast<std::size_t>(search_pages_bytes({c_.page_tokens, c_.dim, 4}, c_.group, z.end, how)) + 64);
      const dci_cells cells = lists_[static_cast<std::size_t>(unit / c_.heads / c_.new_tokens * c_.heads + unit % c_.heads)].cells();
      const auto n = search_pages<bf16>(host{.threads = 1}, c_.shape, of, cells, asked_of(unit, z), how, result, aligned()).found;
      result.resize(static_cast<std::size_t>(n));
      std::sort(result.begin(), result.end());
    }
    std::vector<std::int32_t> ids(result.size() * static_cast<std::size_t>(c_.page_tokens));
    ids.resize(static_cast<std::size_t>(tokens_of(c_.shape, of, result, ids.data())));
    return ids;
  }
  std::span<std::byte> aligned() {
    void* start = scratch_.data();
    std::size_t space = scratch_.size();
    auto* const at = static_cast<std::byte*>(std::align(64, 1, start, space));
    return {at, space};
  }

  search_case c_;
  std::mt19937 random_;
  paged_rows<bf16> rows_;
  std::vector<std::byte> memory_[dci_column_count];
  column_array arrays_[dci_column_count];
  std::int64_t tokens_ = 0;
  std::vector<float> queries_, resident_;
  std::vector<dci_lists> lists_;  // (sequences, heads)
  std::vector<std::byte> scratch_;
};

}  // namespace kvx::test
