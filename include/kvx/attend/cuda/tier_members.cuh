#pragma once
// Selection for attention in tiers, on a device: the candidates of all units, those included that pages without a tail are taken for.

#include <kvx/attend/tiers.hpp>
#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/cuda/phases.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/index/cuda/bucket_search.cuh>
#include <kvx/index/cuda/scan_buckets.cuh>
#include <kvx/index/cuda/select_candidates.cuh>
#include <kvx/index/cuda/unit_zone.cuh>
#include <kvx/layout/device_batch.hpp>
#include <kvx/rerank/cuda/rerank_units.cuh>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// A page of a zone.
///
/// start       where its members begin among the candidates of its unit
/// tokens      that its tail stands for where none of them is a member: all of its own, if it lies whole in the zone and holds no key that
///             is never found, else none
struct tier_page {
  std::int32_t start;
  std::int32_t tokens;
};

/// The members of one unit's zone, page after page. Plain members: it lies in shared memory.
///
/// page        counted from the zone's first; member: counted over the zone
struct tier_unit_members {
  static constexpr int fewest_untouched = fewest_in_tail;  ///< tokens of a page of which none is a member, if it has a tail
  static constexpr bool may_be_unread = false;             ///< all members have codes that can be read

  const tier_page* pages;
  const std::int32_t* ids;

  __device__ __forceinline__ std::int32_t start(std::int64_t page) const { return pages[page].start; }
  /// column      id under which the page's columns lie
  __device__ __forceinline__ std::int32_t tokens(std::int64_t page, std::int32_t column) const {
    static_cast<void>(column);
    return pages[page].tokens;
  }
  /// P times the page whose code the member's is, and its slot there.
  __device__ __forceinline__ std::int32_t id(std::int64_t member) const { return ids[member]; }
  /// Where it stands among the candidates that were ranked.
  __device__ __forceinline__ std::int64_t place(std::int64_t member) const { return member; }
};

/// The pages of a unit's zone: `count` from page `first` of the sequence on, of KV head `head`. Plain members: it lies in shared memory.
struct unit_pages {
  std::int64_t unit, head, first, count;
  const std::int32_t* ids;  ///< (count) under which their columns lie
};

/// Tokens of a chunk by page: `all` with every page without a tail taken as coded, `few` without those that hold a key never found.
struct member_counts {
  std::uint32_t all;
  std::uint32_t few;
};

/// Members of the zones of all units. Trivially copyable; all pointers are the device's.
///
/// ids, counts   (units, id_pitch) candidates, ascending tokens; how many (units)
/// pages         (units, page_pitch + 1) of the zone of each unit, entry 0 for the page of its first token; one behind the last, where the
///               members end
/// chunks        (units, chunks) tokens that each chunk gives
/// counters      of each unit: blocks that are done; then one of the launch. 0 before and after every launch
struct tier_members {
  std::int32_t* ids = nullptr;
  std::int32_t* counts = nullptr;
  tier_page* pages = nullptr;
  member_counts* chunks = nullptr;
  unsigned* counters = nullptr;
  std::int64_t id_pitch = 0;
  std::int64_t page_pitch = 0;

  KVX_HD constexpr tier_page* pages_of(std::int64_t unit) const { return pages + unit * (page_pitch + 1); }

  /// How many members a unit has; -1 where neither codes nor tails count: no key of its zone is found.
  __device__ __forceinline__ std::int32_t count_of(const device_batch&, const rerank_input&, const rerank_output&,
                                                   std::int64_t unit) const {
    return counts[unit] > 0 ? counts[unit] : -1;
  }
  __device__ __forceinline__ tier_unit_members of_unit(const unit_pages& of) const { return {pages_of(of.unit), ids + of.unit * id_pitch}; }
  static constexpr std::int64_t counters_needed(const bucket_search_shape& s) { return s.units() + 1; }
};

/// Lays the arrays out in memory of the device; without memory it counts the bytes. Counters come from elsewhere.
inline tier_members plan_members(const bucket_search& s, scratch_parts& memory) {
  tier_members m;
  const std::int64_t units = s.units();
  m.id_pitch = round_up(most_in_codes(s.longest, s.most_wanted(), s.page.tokens), 32);
  m.page_pitch = s.page_pitch;
  m.ids = memory.take<std::int32_t>(units * m.id_pitch);
  m.counts = memory.take<std::int32_t>(units);
  m.pages = memory.take<tier_page>(units * (m.page_pitch + 1));
  m.chunks = memory.take<member_counts>(units * s.chunks);
  return m;
}

/// Which keys of a chunk a search takes: those with a score above `level`, and the first `ties` of the unit that have it, of which
/// `before` lie before the chunk. Plain members: it lies in shared memory.
struct member_cut {
  int level;
  std::uint32_t ties;
  std::uint32_t before;
};

/// What a block knows of its chunk: sixteen tokens to a mask.
struct member_chunk {
  static constexpr int groups = most_chunk_tokens / 16;
  std::uint16_t candidates[groups];
  std::uint16_t found[groups];
  unsigned taken[most_chunk_pages];  ///< candidates of a page
  unsigned lost[most_chunk_pages];   ///< keys of the zone that are never found
  unsigned modes[most_chunk_pages];  ///< bit 0: taken as coded; bit 1: so, even where few are; bit 2: whole
};

/// Calls each(page of the chunk, mask) for the pages of tokens place .. place + 15; pages of 16 tokens and more hold all of them.
template <class Each>
__device__ __forceinline__ void for_each_page_of_group(int place, int page_tokens, const Each& each) {
  if (page_tokens >= 16) return each(place / page_tokens, 0xffffu);
  for (int j = 0; j < 16; j += page_tokens) each((place + j) / page_tokens, ((1u << page_tokens) - 1) << j);
}

/// Which tokens of a chunk are candidates and which are found, and both counted by page; the modes of pages.
template <int Threads>
__device__ __forceinline__ void find_members(const bucket_search& s, const unit_zone& zone, const scanned_chunk& c, const member_cut& cut,
                                             bool expands, member_chunk& m) {
  __shared__ block_scratch<std::uint32_t, Threads> sums;
  const int P = s.page.tokens, tid = static_cast<int>(threadIdx.x);
  const std::int64_t first = c.page * P;  // token of the chunk's first place
  for (int p = tid; p < c.pages; p += Threads) m.taken[p] = m.lost[p] = 0;
  __syncthreads();
  std::uint32_t earlier = cut.before;
  for (int tile = 0; tile < c.tokens; tile += 16 * Threads) {
    const int place = tile + 16 * tid, count = c.tokens - place < 16 ? c.tokens - place : 16;
    uint4 scores = make_uint4(0, 0, 0, 0);
    if (count > 0) scores = *reinterpret_cast<const uint4*>(s.scores_of(c.unit) + c.start + place);
    const score_masks masks(scores, cut.level, count), scored(scores, no_score, count);
    const auto equal = static_cast<std::uint32_t>(__popc(masks.equal));
    std::uint32_t all = 0;
    std::uint32_t tie = earlier + block_exclusive_sum(equal, sums, all);
    earlier += all;
    if (count <= 0) continue;
    std::uint32_t candidates = masks.above;
    for (std::uint32_t left = masks.equal; left != 0 && tie < cut.ties; left &= left - 1, ++tie) candidates |= left & (0u - left);
    const std::int64_t before = zone.begin - first - place;  // places that lie before the zone
    const std::uint32_t lost = scored.equal & (before <= 0 ? 0xffffu : before >= 16 ? 0u : 0xffffu << before);
    m.candidates[place / 16] = static_cast<std::uint16_t>(candidates);
    m.found[place / 16] = static_cast<std::uint16_t>(scored.above);
    for_each_page_of_group(place, P, [&](int page, std::uint32_t mask) {
      if (page >= c.pages) return;
      if ((candidates & mask) != 0) atomicAdd(&m.taken[page], static_cast<unsigned>(__popc(candidates & mask)));
      if ((lost & mask) != 0) atomicAdd(&m.lost[page], static_cast<unsigned>(__popc(lost & mask)));
    });
  }
  __syncthreads();
  for (int p = tid; p < c.pages; p += Threads) {
    const std::int64_t begin = first + std::int64_t{p} * P;
    const bool whole = begin >= zone.begin && begin + P <= zone.end && m.lost[p] == 0;
    const bool codes = expands && !(whole && P - static_cast<int>(m.taken[p]) >= fewest_in_tail);
    m.modes[p] = (codes ? 1u : 0u) | (codes && m.lost[p] == 0 ? 2u : 0u) | (whole ? 4u : 0u);
  }
  __syncthreads();
}

/// Tokens that a chunk gives, by both rules.
template <int Threads>
__device__ __forceinline__ member_counts count_members(const bucket_search& s, const unit_zone& zone, const scanned_chunk& c,
                                                       const member_chunk& m) {
  __shared__ block_scratch<std::uint64_t, Threads> sums;
  const std::int64_t P = s.page.tokens;
  std::uint64_t mine = 0;
  for (int p = static_cast<int>(threadIdx.x); p < c.pages; p += Threads) {
    const std::int64_t begin = (c.page + p) * P, from = begin > zone.begin ? begin : zone.begin;
    const std::int64_t to = begin + P < zone.end ? begin + P : zone.end;
    const auto found = static_cast<std::uint64_t>(to - from - m.lost[p]);
    mine += ((m.modes[p] & 1) != 0 ? found : m.taken[p]) << 32 | ((m.modes[p] & 2) != 0 ? found : m.taken[p]);
  }
  const std::uint64_t all = block_reduce<Threads>(
      mine, [](std::uint64_t a, std::uint64_t b) { return a + b; }, sums);
  return {static_cast<std::uint32_t>(all >> 32), static_cast<std::uint32_t>(all)};
}

/// Writes a chunk's members and pages.
///
/// mode        bit of member_chunk::modes that says which pages are taken as coded
/// start       members of the unit before the chunk
template <int Threads>
__device__ __forceinline__ void write_members(const bucket_search& s, const unit_zone& zone, const scanned_chunk& c, const member_chunk& m,
                                              const tier_members& to, unsigned mode, std::uint32_t start) {
  __shared__ block_scratch<std::uint32_t, Threads> sums;
  const int P = s.page.tokens;
  std::int32_t* const ids = to.ids + c.unit * to.id_pitch;
  tier_page* const pages = to.pages_of(c.unit) + (c.page - zone.first_page(P));
  for (int tile = 0; tile < c.tokens; tile += 16 * Threads) {
    const int place = tile + 16 * static_cast<int>(threadIdx.x);
    std::uint32_t members = 0, all = 0;
    if (place < c.tokens) {
      for_each_page_of_group(place, P, [&](int page, std::uint32_t mask) {
        if (page < c.pages) members |= mask & ((m.modes[page] & mode) != 0 ? m.found[place / 16] : m.candidates[place / 16]);
      });
    }
    const std::uint32_t before = start + block_exclusive_sum(static_cast<std::uint32_t>(__popc(members)), sums, all);
    start += all;
    if (place >= c.tokens) continue;
    std::uint32_t at = before;
    for (std::uint32_t left = members; left != 0; left &= left - 1)
      ids[at++] = static_cast<std::int32_t>(c.page * P + place + __ffs(static_cast<int>(left)) - 1);
    for_each_page_of_group(place, P, [&](int page, std::uint32_t mask) {
      if (page >= c.pages || (P >= 16 && place % P != 0)) return;
      const std::uint32_t earlier = P >= 16 ? 0 : members & ((mask & (0u - mask)) - 1);
      pages[page] = {static_cast<std::int32_t>(before + static_cast<std::uint32_t>(__popc(earlier))), (m.modes[page] & 4) != 0 ? P : 0};
    });
  }
}

/// Blocks are numbered as they start: first those that count the members of each chunk, then those that write them.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    select_members_kernel(const bucket_search s, const device_batch batch, const tier_members to, const bool expands) {
  __shared__ unit_zone zone;
  __shared__ member_chunk members;
  __shared__ block_scratch<std::uint64_t, Threads> sums;
  __shared__ member_cut cut;
  __shared__ unsigned number;
  const auto each = static_cast<unsigned>(s.units() * s.chunks);
  if (threadIdx.x == 0) {
    number = start_number(to.counters + s.units(), 2 * each);
    const std::int64_t at = number % each, unit = at / s.chunks;
    zone = read_zone(s, batch, unit);
    cut = {255, 0, 0};
    // Where nothing is found, and of chunks that are not there, nothing is written.
    const std::int64_t places = zone.end > zone.begin ? zone.end - zone.first_page(s.page.tokens) * s.page.tokens : 0;
    if (at % s.chunks * s.chunk < places && s.cuts[unit].count > 0)
      cut = {s.cuts[unit].level, static_cast<std::uint32_t>(s.cuts[unit].ties), s.starts[at].ties};
  }
  __syncthreads();
  const bool counts = number < each;
  const scanned_chunk c = chunk_of_block(s, zone, number % each);
  if (c.tokens <= 0) {
    if (c.chunk == 0 && !counts && threadIdx.x == 0) to.counts[c.unit] = 0;
    return;
  }
  find_members<Threads>(s, zone, c, cut, expands, members);
  const auto chunks = static_cast<unsigned>(ceil_div(zone.end - zone.first_page(s.page.tokens) * s.page.tokens, s.chunk));
  member_counts* const of_chunks = to.chunks + c.unit * s.chunks;
  unsigned* const done = to.counters + c.unit;
  if (counts) {
    const member_counts mine = count_members<Threads>(s, zone, c, members);
    if (threadIdx.x == 0) of_chunks[c.chunk] = mine;
    return tell_done(done);
  }
  wait_for(done, chunks);
  std::uint64_t mine_all = 0, mine_before = 0;  // by all pages in the high half, by few in the low half
  for (unsigned i = threadIdx.x; i < chunks; i += Threads) {
    const std::uint64_t x = std::uint64_t{of_chunks[i].all} << 32 | of_chunks[i].few;
    mine_all += x;
    if (i < c.chunk) mine_before += x;
  }
  const auto plus = [](std::uint64_t a, std::uint64_t b) { return a + b; };
  const std::uint64_t all = block_reduce<Threads>(mine_all, plus, sums), before = block_reduce<Threads>(mine_before, plus, sums);
  const std::int64_t most = most_in_codes(zone.tokens(), s.wanted(zone.tokens(), zone.committed), s.page.tokens);
  const bool few = static_cast<std::int64_t>(all >> 32) > most;
  write_members<Threads>(s, zone, c, members, to, few ? 2 : 1, static_cast<std::uint32_t>(few ? before : before >> 32));
  if (threadIdx.x != 0) return;
  const auto total = static_cast<std::int32_t>(static_cast<std::uint32_t>(few ? all : all >> 32));
  if (c.chunk == 0) {
    to.counts[c.unit] = total;
    to.pages_of(c.unit)[zone.last_page(s.page.tokens) - zone.first_page(s.page.tokens)] = {total, 0};
  }
  if (atomicAdd(done, 1u) + 1 == 2 * chunks) *done = 0;  // all that waited have gone on
}

/// The candidates of all units, ascending, and which of them belong to each page.
///
/// what        the tokens of select_candidates; with `expands` every token that is found of pages that have no tail, too, as far as
///             most_in_codes allows it: the host's find_tails
/// shapes      see bucket_search, tier_members; behind a scan
/// exactness   integers: the host's members
/// cost        one launch; reads one byte a key twice, writes four a candidate
/// errors      usage_error: pages of more than 1,024 tokens; a sketch without norms
inline void select_members(const device& exec, const bucket_search& s, const device_batch& batch, const tier_members& to, bool expands,
                           call_site where = call_site::here()) {
  require_device_search(s, where);
  require_range("select_members: tokens of a page", s.page.tokens, 1, s.chunk, where);
  require(s.sketch.norms, "select_members: the sketch has no norms", where);
  require_range("select_members: blocks", 2 * s.units() * s.chunks, 0, INT32_MAX, where);
  constexpr int threads = 128;
  launch(exec, {dim3(static_cast<unsigned>(2 * s.units() * s.chunks)), threads, 0}, select_members_kernel<threads>, s, batch, to, expands);
}

}  // namespace kvx
