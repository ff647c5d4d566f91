// Loading the semantic pages of a selection from a file into slots, against copying as many cold bytes of memory.
//
// usage: bulk_load [<filter>]     prints "name value"; lines that begin with # say under which conditions
//
// Setting: D 128, bf16, pages of 16 tokens, 8 KV heads, far memory of 1 GiB, larger than the caches and warm in the system's memory. A load
// is 12 pages of each head, drawn at random, none of which is in a slot (they were written in blocks of 256 tokens, as a commit does); the
// copy takes 12 others from 1 GiB of memory to the same places.
//
//   bulk_load_vs_memcpy          bytes a second of the loads, through a mapping (far_place::mapped) / of the copies
//   bulk_load_calls_vs_memcpy    the same by calls, which no failing disk can turn into a signal

#include "../support/machine.hpp"
#include "../support/timing.hpp"

#include <kvx/kvx.hpp>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <string_view>
#include <vector>

using namespace kvx;

namespace {

constexpr int heads = 8, dim = 128, page_tokens = 16, wanted = 12, block_pages = 16, loads = 200, rounds = 15;
constexpr std::int64_t head_elements = page_tokens * 2 * dim, image = heads * head_elements * 2, pages = (std::int64_t{1} << 30) / image;

semantic_row in_order(const void*, std::int64_t token, const semantic_row&, bool) {
  return {token / page_tokens, static_cast<std::int32_t>(token / page_tokens), static_cast<int>(token % page_tokens)};
}

/// Loads against copies.
double ratio(bool mapped) {
  const host exec;
  far_images<bf16> images({.mapped = mapped}, pages, image, 1, false, call_site::here());
  memory_block near = allocate(exec, pages * image), slots = allocate(exec, heads * fewest_hot_pages * head_elements * 2);
  std::memset(near.data(), 1, static_cast<std::size_t>(near.size()));
  const row_view<bf16> rows =
      rows_at<bf16>(reinterpret_cast<bf16*>(near.data()), {page_tokens, dim, dim}, heads, heads * head_elements, head_elements);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(pages));
  std::iota(ids.begin(), ids.end(), 0);
  for (std::size_t p = 0; p < ids.size(); p += block_pages)
    images.write(rows, 0, std::span(ids).subspan(p, block_pages), call_site::here());

  const std::vector<std::int32_t> far(static_cast<std::size_t>(pages), 1);
  far_layer<bf16> layer{rows, &images.file(), far.data(), 1, 0, 0, true, std::vector<far_slots<bf16>>(heads)};
  for (std::int64_t h = 0; h < heads; ++h) {
    far_slots<bf16>& s = layer.heads[static_cast<std::size_t>(h)];
    s.order = hot_pages(fewest_hot_pages);
    s.asked.resize(fewest_hot_pages);
    s.rows = reinterpret_cast<bf16*>(slots.data()) + h * fewest_hot_pages * head_elements;
  }
  std::mt19937_64 random(3);
  const auto selection = [&](std::vector<std::int32_t>& tokens) {  // (heads, wanted): one token of each page
    for (std::size_t i = 0; i < heads * wanted; ++i)
      tokens[i] = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(pages)) * page_tokens;
  };
  std::vector<std::int32_t> tokens(heads * wanted);
  const auto load = [&] {
    for (int i = 0; i < loads; ++i) {
      selection(tokens);
      for_each_task(exec, heads, [&](std::int64_t h) {
        far_head<bf16>(&layer, ids.data(), h, nullptr, in_order)
            .bring(std::span(tokens).subspan(static_cast<std::size_t>(h * wanted), wanted));
      });
    }
  };
  const auto copy = [&] {
    for (int i = 0; i < loads; ++i) {
      selection(tokens);
      for_each_task(exec, heads, [&](std::int64_t h) {
        for (int j = 0; j < wanted; ++j) {
          const std::int64_t page = tokens[static_cast<std::size_t>(h * wanted + j)] / page_tokens;
          std::memcpy(layer.heads[static_cast<std::size_t>(h)].rows + (i * wanted + j) % fewest_hot_pages * head_elements,
                      rows.key.at(page, h, 0), static_cast<std::size_t>(head_elements) * 2);
        }
      });
    }
  };
  const auto t = bench::alternate({load, copy}, rounds);
  far_counts all;
  for (const far_slots<bf16>& s : layer.heads) all.moved += s.counts.moved, all.wanted += s.counts.wanted;
  const double bytes = static_cast<double>(loads) * heads * wanted * static_cast<double>(head_elements) * 2;
  std::printf("# %d threads: load %.2f GB/s, copy %.2f GB/s; %.2f %% of the pages were not in a slot\n", bench::cores(),
              bytes / t[0] * 1e-9, bytes / t[1] * 1e-9, 100 * static_cast<double>(all.moved) / static_cast<double>(all.wanted));
  return t[1] / t[0];
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view filter = argc > 1 ? argv[1] : "";
  for (const bool mapped : {true, false}) {
    const char* const name = mapped ? "bulk_load_vs_memcpy" : "bulk_load_calls_vs_memcpy";
    if (std::string_view(name).find(filter) != std::string_view::npos) std::printf("%s %.3f\n", name, ratio(mapped));
  }
  return 0;
}
