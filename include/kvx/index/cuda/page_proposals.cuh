#pragma once
// The first look at the pages of long zones on the device: those that the codes of their means propose to a group of queries.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/cuda/ticket.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/rounded.hpp>
#include <kvx/index/cuda/group_rule.cuh>
#include <kvx/index/cuda/page_arrays.cuh>
#include <kvx/index/page_codes.hpp>
#include <kvx/index/sign_sums.hpp>
#include <kvx/sketch/cuda/top_k.cuh>
#include <kvx/sketch/cuda/whole_query.cuh>
#include <kvx/transform/cuda/srht.cuh>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// Threads and pages of a block that looks at codes, and heads that it reads a code for.
inline constexpr int code_threads = 256, code_pages = 512, code_heads = 4;

/// Sums over the code of one page for `Heads` queries, by one thread.
///
/// shapes      pages (coded_pages) of a group, of which `slot` is the page's; words (2 lines, Heads) in shared memory, at a multiple of 16
///             bytes; totals (Heads), to which is added
template <int Heads>
__device__ __forceinline__ void add_code(const column_array& codes, std::int64_t head, const std::int32_t* pages, int slot, int dim,
                                         const std::int32_t* words, int (&totals)[Heads]) {
  static_assert(Heads == 4);
  constexpr int side = 8;  // lines that are asked for together
  const int lines = page_code_lines{dim}.lines(), each = page_code_lines{dim}.per_page();
  int page = 0, line = 0;  // of the group, of the page
  for (int first = 0; first < lines; first += side) {
    std::uint32_t four[side];
#pragma unroll
    for (int j = 0; j < side; ++j) {
      four[j] = 0;
      if (first + j >= lines) continue;
      four[j] = *reinterpret_cast<const std::uint32_t*>(codes.at(pages[page], head) + 64 * line + 4 * slot);
      if (++line == each) {
        line = 0;
        ++page;
      }
    }
#pragma unroll
    for (int j = 0; j < side; ++j) {
      if (first + j >= lines) continue;
      const int4* const q = reinterpret_cast<const int4*>(words) + 2 * (first + j);
      const int4 a = q[0], b = q[1];
      const auto low = static_cast<int>(four[j] & 0x0f0f0f0fu), high = static_cast<int>(four[j] >> 4 & 0x0f0f0f0fu);
      totals[0] = __dp4a(high, b.x, __dp4a(low, a.x, totals[0]));
      totals[1] = __dp4a(high, b.y, __dp4a(low, a.y, totals[1]));
      totals[2] = __dp4a(high, b.z, __dp4a(low, a.z, totals[2]));
      totals[3] = __dp4a(high, b.w, __dp4a(low, a.w, totals[3]));
    }
  }
}

/// What some blocks of threads do for one unit. All threads call.
template <int Threads, int Heads, class Call>
class page_proposer {
  static constexpr int warps = Threads / warp_lanes, most_dims = 576;
  static_assert(Heads <= warps && Threads % coded_pages == 0);

 public:
  struct scratch {
    alignas(16) std::int32_t words[most_dims / 4 * Heads];  ///< (2 lines, Heads)
    float rotated[Heads][most_dims];
    float units[Heads];
    float most[most_scored_heads];
    sign_words signs;
    block_scratch<float, Threads> largest;
    top_k_scratch<Threads> top;
  };

  __device__ page_proposer(const Call& call, std::int64_t unit, const page_zone& zone, scratch& s)
      : call_(call), unit_(unit), zone_(zone), s_(s) {}

  /// Leaves what heads make of the codes of pages [first, first + code_pages), as far as they are of the zone, and the most
  /// that each makes.
  ///
  /// first       a multiple of coded_pages
  __device__ void look(std::int64_t first, std::int64_t chunk) {
    const std::int64_t end = least(first + code_pages, zone_.first + zone_.count);
    fill_sign_words(call_.index.seed, dim(), s_.signs);
    __syncthreads();
    for (int g0 = 0; g0 < G(); g0 += Heads) {
      load_queries(g0);
      __syncthreads();
      float most[Heads];
#pragma unroll
      for (int h = 0; h < Heads; ++h) most[h] = -infinity;
      for (std::int64_t page = first + threadIdx.x; page < end; page += Threads) {
        int totals[Heads] = {};
        const int slot = static_cast<int>(page % coded_pages);
        add_code<Heads>(call_.mean_codes, unit_ % call_.heads, zone_.pages + (page - slot), slot, dim(), s_.words, totals);
        if (page < zone_.first) continue;
#pragma unroll
        for (int h = 0; h < Heads; ++h) {
          if (g0 + h >= G()) continue;
          const float x = rounded_product(static_cast<float>(totals[h]), s_.units[h]);
          made(g0 + h)[page - zone_.first] = x;
          if (x > most[h]) most[h] = x;
        }
      }
#pragma unroll
      for (int h = 0; h < Heads; ++h) {
        const float all = block_reduce<Threads>(
            most[h], [](float a, float b) { return a < b ? b : a; }, s_.largest);
        if (threadIdx.x == 0 && g0 + h < G()) most_made(g0 + h)[chunk] = all;
      }
    }
  }

  /// Behind all `chunks` of them: the pages of which some head makes most, ascending.
  __device__ void propose(std::int64_t chunks) {
    for (int g = warp_of_thread(); g < G(); g += warps) {
      float most = -infinity;
      for (std::int64_t i = lane_of_thread(); i < chunks; i += warp_lanes) {
        if (most_made(g)[i] > most) most = most_made(g)[i];
      }
      most = warp_max(most);
      if (lane_of_thread() == 0) s_.most[g] = most;
    }
    __syncthreads();
    float* const scores = call_.to.scores + unit_ * call_.to.page_pitch;
    for (std::int64_t t = 4 * threadIdx.x; t < zone_.count; t += 4 * Threads) {
      four_scores best;  // of heads that have a say
      best.load(made(0), t, zone_.count, true);
#pragma unroll
      for (float& x : best.x) x -= s_.most[0];
      for (int g = 1; g < G(); ++g) {
        four_scores other;
        other.load(made(g), t, zone_.count, true);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float x = other.x[i] - s_.most[g];
          if (!(best.x[i] >= x) && x == x) best.x[i] = x;
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (t + i < zone_.count) scores[t + i] = best.x[i] == best.x[i] ? best.x[i] : 0.0f;
      }
    }
    __syncthreads();
    std::int32_t* const proposed = call_.to.proposed + unit_ * call_.to.proposed_pitch;
    const auto take = [&](std::int64_t i, std::int64_t t) { proposed[i] = static_cast<std::int32_t>(t); };
    block_top_k(scores, zone_.count, zone_.looked_at, s_.top, take);
  }

 private:
  __device__ int G() const { return call_.group; }
  __device__ int dim() const { return call_.rows.key_dim; }
  __device__ float* made(int g) const { return call_.to.logits + (unit_ * G() + g) * call_.to.page_pitch; }
  __device__ float* most_made(int g) const { return call_.to.best + (unit_ * G() + g) * call_.to.probe_pitch; }
  __device__ static std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

  /// Brings the queries of heads [g0, g0 + Heads) into whole numbers, a warp each. Units of those that have no say are NaN.
  __device__ void load_queries(int g0) {
    const int h = warp_of_thread(), lane = lane_of_thread();
    if (h >= Heads) return;
    const bool real = g0 + h < G();
    float* const x = s_.rotated[h];
    const float* const plain = call_.plain + (unit_ * G() + g0 + h) * dim();
    query_scale by;
    if (real) {
      warp_rotate(
          dim(), s_.signs, [&](int d, int i) { return plain[d + warp_lanes * i]; },
          [&](int d, int i, float y) { x[d + warp_lanes * i] = y; });
      __syncwarp();
      float largest = 0;
      bool finite = true;
      for (int d = lane; d < dim(); d += warp_lanes) {
        finite = finite && size_of(x[d]) <= largest_float;
        if (size_of(x[d]) > largest) largest = size_of(x[d]);
      }
      by = warp_scale_of(largest, finite);
    }
    if (lane == 0) s_.units[h] = !has_a_say(by) ? quiet_nan : call_.scale < 0 ? -by.unit : by.unit;
    const int words = 2 * page_code_lines{dim()}.lines();
    for (int i = lane; i < words; i += warp_lanes) s_.words[i * Heads + h] = real ? query_word(x, dim(), 4 * i, by.inverse) : 0;
  }

  const Call& call_;
  std::int64_t unit_;
  const page_zone& zone_;
  scratch& s_;
};

template <int Threads, int Heads, class Call>
__global__ void __launch_bounds__(Threads, 3) propose_pages_kernel(Call call, int chunks) {
  using proposer = page_proposer<Threads, Heads, Call>;
  __shared__ typename proposer::scratch scratch;
  __shared__ page_zone zone;
  const std::int64_t unit = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
  if (threadIdx.x == 0) zone = page_zone_of(call, unit);
  __syncthreads();
  const std::int64_t first = zone.first / coded_pages * coded_pages, here = ceil_div(zone.first + zone.count - first, code_pages);
  if (!zone.is_searched() || zone.listed == nullptr || chunk >= here) return;
  proposer of(call, unit, zone, scratch);
  of.look(first + chunk * code_pages, chunk);
  if (arrives_last(call.to.tickets + unit, static_cast<unsigned>(here))) of.propose(here);
}

/// Leaves the pages that the codes of their means propose, of the units whose zones are long: proposed_pages.
///
/// what        page_proposals of the host; call.to.logits and best hold sums, and the most of each block's
/// shapes      codes of the means of all pages before the end of each zone: see page_code_lines; tickets 0 before and after
/// cost        one launch: reads D / 2 bytes a page for every four heads, 512 pages a block; the last block of a unit chooses. Units of
///             other zones cost blocks that return at once
/// exactness   the pages of the host, to the last one: integer sums, one product
/// errors      usage_error for shapes that do not fit
template <class Call>
void propose_pages(const device& exec, const Call& call, call_site where = call_site::here()) {
  const std::int64_t units = call.units(), chunks = ceil_div(ceil_div(call.longest, call.page_tokens), code_pages);
  require_range("search_pages: key_dim", call.rows.key_dim, 1, 576, where);
  require_range("search_pages: heads of the group", call.group, 1, most_scored_heads, where);
  require_range("search_pages: blocks", units * chunks, 0, INT32_MAX, where);
  require(call.to.tickets != nullptr, "search_pages: where pages are proposed, units have tickets", where);
  launch(exec, {.grid = dim3(static_cast<unsigned>(units * chunks)), .threads = code_threads},
         propose_pages_kernel<code_threads, code_heads, Call>, call, static_cast<int>(chunks));
}

}  // namespace kvx
