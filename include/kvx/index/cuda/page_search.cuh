#pragma once
// Search for semantic pages on the device: means, of all pages or of those that codes propose, then the members of the most promising until
// the next promises too little; or a beam through the tree.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/dynamic_shared.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/rounded.hpp>
#include <kvx/index/cuda/mean_dots.cuh>
#include <kvx/index/cuda/page_arrays.cuh>
#include <kvx/index/cuda/page_finder.cuh>
#include <kvx/index/cuda/page_order.cuh>
#include <kvx/index/cuda/page_proposals.cuh>
#include <kvx/index/cuda/scan_blocks.cuh>
#include <kvx/index/cuda/tree_search.cuh>
#include <kvx/layout/cuda/row_dots.cuh>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// Threads and pages of a block that looks at means.
inline constexpr int mean_threads = 256, mean_pages = 256;

/// Logits of the means of some pages of one unit that are looked at, with what their spreads may add where members are looked at; NaN for a
/// page without members.
template <int Threads, int Heads, class Call>
__global__ void __launch_bounds__(Threads) scan_means_kernel(Call call, int chunks) {
  __shared__ page_zone zone;
  __shared__ float reach[Heads];  // what a spread of 1 adds
  const std::int64_t unit = blockIdx.x / chunks, head = unit % call.heads;
  if (threadIdx.x == 0) zone = page_zone_of(call, unit);
  __syncthreads();
  constexpr int at_once = Threads / row_lanes;  // few pages go to as many blocks as there are
  const std::int64_t each = zone.listed != nullptr ? round_up(ceil_div(zone.looked_at, chunks), at_once) : mean_pages;
  const std::int64_t first = blockIdx.x % chunks * each;
  if (!zone.is_searched() || first >= zone.looked_at) return;
  auto* const queries = dynamic_shared<float>();
  const int dim = call.rows.key_dim, G = call.group;
  const float* const plain = call.plain + unit * G * dim;
  const std::int64_t last = first + each < zone.looked_at ? first + each : zone.looked_at;
  const float spread = call.index.rank == dci_shape::ranking::mean_then_member ? call.how.spread : 0;
  for (int g0 = 0; g0 < G; g0 += Heads) {
    stage_row_queries<Threads, Heads>(plain, g0, G, dim, call.scale, queries);
    for (int h = warp_of_thread(); h < Heads && g0 + h < G; h += Threads / warp_lanes) {
      double square = 0;
      for (int d = lane_of_thread(); d < dim; d += warp_lanes) {
        const auto q = static_cast<double>(plain[(g0 + h) * dim + d]);
        square += q * q;
      }
      square = warp_sum(square);
      const float scale = call.scale < 0 ? -call.scale : call.scale;
      if (lane_of_thread() == 0) reach[h] = spread * scale * static_cast<float>(sqrt(square));
    }
    __syncthreads();
    const auto page = [&](std::int64_t i) { return zone.pages[zone.first + zone.page(first + i)]; };
    mean_dots<Threads, Heads>(
        queries, dim, last - first, true, [&](std::int64_t i) { return call.mean(page(i), head); },
        [&](std::int64_t i, int h, float logit) {
          if (g0 + h >= G) return;
          const packed_page packed = call.packed(page(i), head);
          const bool real = packed.count() > 0 && logit - logit == 0;
          call.to.logits[(unit * G + g0 + h) * call.to.page_pitch + first + i] =
              real ? logit + rounded_product(reach[h], packed.spread()) : quiet_nan;
        });
    __syncthreads();
  }
}

/// Logits of the means of the pages of every unit's zone, all or those that their codes propose, with what their spreads may add where
/// members are looked at; for two_level_means, of the pages of the best blocks.
template <class Call>
void scan_means(const device& exec, const Call& call, call_site where = call_site::here()) {
  const auto queries = [&](int heads) { return sizeof(float) * static_cast<std::size_t>(heads * row_query_floats(call.rows.key_dim)); };
  if (call.index.rank == dci_shape::ranking::two_level_means) {
    return launch(
        exec,
        {.grid = dim3(static_cast<unsigned>(call.units())), .threads = scan_blocks_threads, .shared_bytes = queries(scan_blocks_heads)},
        scan_blocks_kernel<scan_blocks_threads, scan_blocks_heads, Call>, call);
  }
  const std::int64_t units = call.units(), chunks = ceil_div(ceil_div(call.longest, call.page_tokens), mean_pages);
  require_range("search_pages: blocks", units * chunks, 0, INT32_MAX, where);
  if (call.proposes()) propose_pages(exec, call, where);
  const auto scan = [&]<int Heads>() {
    launch(exec, {.grid = dim3(static_cast<unsigned>(units * chunks)), .threads = mean_threads, .shared_bytes = queries(Heads)},
           scan_means_kernel<mean_threads, Heads, Call>, call, static_cast<int>(chunks));
  };
  if (call.descends()) {
    search_tree(exec, call, where);
  } else if (call.group <= 4) {
    scan.template operator()<4>();
  } else {
    scan.template operator()<8>();
  }
}

/// The members of the semantic pages that each unit's queries look for.
///
/// what        search_pages of the host: the pages' logits are those of their means, of their best members that were seen, or, for
///             coded_member, what `score(call)` leaves in call.to.logits of all pages of the zone, NaN for those that are never found.
///             Where positions take what others have found (call.kept), all of this once for those that search, and then for the others
/// shapes      see page_search_shape and page_search_arrays
/// cost        two launches, twice as many where positions take from others: reads all means once for every eight heads, or those of the
///             best blocks for every four; then one block a unit. best_member: three or five, see search_tree. Where a sequence may have a
///             zone whose pages are proposed, one more, see propose_pages; then the means of those alone are read
/// exactness   given the same logits the host's pages, where its sums of exponentials do not differ in their last bits, among the same
///             pages as the host where codes propose them; the same bits on every run
/// errors      usage_error for shapes that do not fit
template <element E, class Budget, class Far, class Score>
void search_pages(const device& exec, page_search_call<E, Budget, Far> call, const Score& score, call_site where = call_site::here()) {
  using ranking = dci_shape::ranking;
  require_range("search_pages: key_dim", call.rows.key_dim, 1, 576, where);
  require_range("search_pages: heads of the group", call.group, 1, most_scored_heads, where);
  require_range("search_pages: turns of the heads", call.how.interleave ? call.group * call.to.found_pitch : 0, 0, most_turns, where);
  const auto search = [&](bool follows) {
    call.kept.follows = follows;
    if (call.index.rank == ranking::coded_member) {
      score(call);
    } else if (call.descends()) {
      search_tree(exec, call, where);
    } else {
      scan_means(exec, call, where);
    }
    launch(exec,
           {.grid = dim3(static_cast<unsigned>(call.units())),
            .threads = find_threads,
            .shared_bytes = sizeof(float) * static_cast<std::size_t>(find_heads * row_query_floats(call.rows.key_dim))},
           find_pages_kernel<find_threads, find_heads, page_search_call<E, Budget, Far>>, call);
  };
  search(false);
  if (call.kept.data != nullptr && call.kept.reuse.steps > 1) search(true);
}

/// The same without codes.
template <element E, class Budget, class Far>
void search_pages(const device& exec, const page_search_call<E, Budget, Far>& call, call_site where = call_site::here()) {
  require(call.index.rank != dci_shape::ranking::coded_member, "search_pages: coded_member needs the codes of the members", where);
  search_pages(
      exec, call, [](const page_search_call<E, Budget, Far>&) {}, where);
}

}  // namespace kvx
