#pragma once
// What a block does to prepare a search by sign sums for one unit.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/simd/scan_table.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/index/cuda/bucket_search.cuh>
#include <kvx/index/cuda/byte_histogram.cuh>
#include <kvx/index/cuda/prepared_query.cuh>
#include <kvx/index/cuda/sign_scores.cuh>
#include <kvx/index/cuda/sign_sum_shared.cuh>
#include <kvx/index/cuda/unit_zone.cuh>
#include <kvx/index/sign_sums.hpp>
#include <kvx/sketch/key_norm.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// One block's work; prepare_sign_sums states the contract. Every phase is one method, and ends before a barrier of run().
template <int Threads, int Words, bool Wide>
class sign_sum_block {
 public:
  __device__ sign_sum_block(const bucket_search& s, const scanned_columns& columns, const unit_zone& zone, std::int64_t unit,
                            const device_queries& in, double kappa, scratch_parts& shared)
      : s_(s),
        columns_(columns),
        zone_(zone),
        unit_(unit),
        in_(in),
        kappa_(kappa),
        dim_(s.page.key_dim),
        tokens_(s.page.tokens),
        heads_(sign_sum_record_of(s.sketch, s.by, s.page.key_dim, s.group).heads),
        mean_(s.by.of == bucket_scoring::query::mean_query),
        paged_(s.sketch.centre && s.sketch.norms),
        head_(unit % s.heads),
        m_(shared, s, sign_sum_record_of(s.sketch, s.by, s.page.key_dim, s.group)) {}

  __device__ void run() {
    const std::int64_t first = zone_.first_page(tokens_), pages = zone_.last_page(tokens_) - first;
    samples_ = static_cast<int>(pages < sampled_pages(tokens_) ? pages : sampled_pages(tokens_));
    for (int i = thread(); i < 256; i += Threads) s_.histograms[unit_ * 256 + i] = 0;
    if (thread() == 0) s_.tickets[unit_] = 0;
    if (samples_ == 0) return;
    for (int i = thread(); i < samples_; i += Threads) {
      const std::int64_t place = sampled_page(first, pages, samples_, i);
      m_.places[i] = static_cast<std::int32_t>(place);
      m_.ids[i] = zone_.pages[place];
    }
    for (int i = thread(); i < 256; i += Threads) m_.histogram[i] = 0;
    for (int g = thread(); g < m_.scorer.at.padded_heads(); g += Threads) m_.entries[g] = 0;
    find_finite();
    __syncthreads();
    count_norms();
    if (mean_) take_mean();
    __syncthreads();
    choose_reference();
    if (mean_ && thread() == 0) {  // from here on the mean query is the one head
      for (int g = 1; g < s_.group; ++g) m_.finite[0] |= m_.finite[g];
    }
    measure_heads();
    __syncthreads();
    choose_units();
    fill_page_queries();
    __syncthreads();
    fill_tables();
    __syncthreads();
    for (int g = thread(); g < heads_; g += Threads) {
      const double norm = s_.sketch.norms ? static_cast<double>(norm_of(m_.scorer.numbers().reference)) : 1;
      const bool offset = !mean_ && s_.sketch.norms && in_.lse != nullptr && is_finite(in_.lse[g]);
      const double undo = paged_ ? power_of_two(exponent_of(m_.largest[g]) + 1) : 0;
      m_.units[g] = {sum_unit(in_.scale, kappa_, norm, m_.c[g]), static_cast<double>(in_.scale) * undo,
                     offset ? static_cast<double>(in_.lse[g]) : 0, m_.entries[g], used(g)};
    }
    __syncthreads();
    find_tops();
    choose_word();
    __syncthreads();
    fill_record();
    for (int i = thread(); i < 256; i += Threads) m_.histogram[i] = 0;
    __syncthreads();
    score_samples();
    choose_bytes();
    __syncthreads();
    copy_words(m_.scorer.record, prepared(), m_.scorer.at.page_queries, Threads);
  }

 private:
  static __device__ int thread() { return static_cast<int>(threadIdx.x); }
  __device__ std::byte* prepared() const { return s_.queries + unit_ * s_.query_pitch; }
  __device__ bool used(int g) const { return m_.finite[g] != 0; }
  __device__ float rotated(int g, int d) const { return mean_ ? m_.mean[d] : used(g) ? in_.rotated[g * dim_ + d] : 0.0f; }
  __device__ float plain(int g, int d) const { return mean_ ? m_.mean[dim_ + d] : used(g) ? in_.plain[g * dim_ + d] : 0.0f; }
  __device__ double* quads() const { return reinterpret_cast<double*>(m_.scorer.record + m_.scorer.at.tables); }  // (heads, D / 4)
  __device__ const std::uint8_t* norms(int sample) const {
    return s_.sketch.norms ? reinterpret_cast<const std::uint8_t*>(columns_.norms.at(m_.ids[sample], head_)) : nullptr;
  }

  __device__ auto mean_of(int from) const {
    return [this, from](int p) { return reinterpret_cast<const bf16*>(columns_.means.at(m_.ids[from + p], head_)); };
  }

  /// Calls visit(sample, slot, keys, mask) for the sampled keys of samples [from, to), `keys` at a time; mask has a byte for each key that
  /// lies in the zone.
  template <class Visit>
  __device__ __forceinline__ void for_keys(int from, int to, const Visit& visit) const {
    const int keys = keys_at_once(tokens_), of_page = tokens_ / keys;
    for (int i = thread(); i < (to - from) * of_page; i += Threads) {
      const int sample = from + i / of_page, slot = i % of_page * keys;
      const std::int64_t token = std::int64_t{m_.places[sample]} * tokens_ + slot;
      std::uint32_t mask = 0;
      for (int j = 0; j < keys; ++j) mask |= token + j >= zone_.begin && token + j < zone_.end ? 255u << 8 * j : 0;
      visit(sample, slot, keys, mask);
    }
  }

  __device__ void find_finite() {
    for (int g = warp_of_thread(); g < s_.group; g += Threads / warp_lanes) {
      bool finite = true;
      for (int d = lane_of_thread(); d < dim_; d += warp_lanes) {
        finite = finite && is_finite(in_.rotated[g * dim_ + d]) && (!paged_ || is_finite(in_.plain[g * dim_ + d]));
      }
      finite = __all_sync(all_lanes, finite ? 1 : 0) != 0;
      if (lane_of_thread() == 0) m_.finite[g] = finite ? 1 : 0;
    }
  }

  __device__ void count_norms() {
    if (!s_.sketch.norms) return;
    for_keys(0, samples_, [&](int sample, int slot, int keys, std::uint32_t mask) {
      const std::uint32_t bytes = load_keys(norms(sample) + slot, keys) & mask;
      for (int j = 0; j < keys; ++j) {
        if ((bytes >> 8 * j & 255) != never_found) atomicAdd(&m_.histogram[bytes >> 8 * j & 255], 1u);
      }
    });
  }

  /// Of the finite queries, as one head that is used if there are any.
  __device__ void take_mean() {
    for (int d = thread(); d < 2 * dim_; d += Threads) {
      const float* const from = d < dim_ ? in_.rotated + d : in_.plain + d - dim_;
      double sum = 0;
      int finite = 0;
      for (int g = 0; g < s_.group; ++g) {
        if (m_.finite[g] == 0) continue;
        ++finite;
        if (d < dim_ || paged_) sum += static_cast<double>(from[g * dim_]);
      }
      m_.mean[d] = finite > 0 ? static_cast<float>(sum / finite) : 0.0f;
    }
  }

  __device__ void choose_reference() {
    if (warp_of_thread() != 0) return;
    const warp_histogram found(m_.histogram);
    const std::int64_t keys = found.keys();
    const int median = found.byte_at(median_place(keys)), largest = found.largest();
    if (lane_of_thread() == 0)
      m_.scorer.numbers() = {coarse_scale.low, coarse_scale.gain, keys > 0 ? reference_byte(median, largest) : std::uint8_t{128}};
  }

  __device__ void measure_heads() {
    const int quads_of_head = (dim_ + 3) / 4;
    for (int i = thread(); i < heads_ * quads_of_head; i += Threads) {
      const int g = i / quads_of_head, first = i % quads_of_head * 4;
      double sum = 0;
      for (int d = first; d < first + 4 && d < dim_; ++d) sum += static_cast<double>(size_of(rotated(g, d)));
      quads()[i] = sum;
    }
    for (int g = warp_of_thread(); paged_ && g < heads_; g += Threads / warp_lanes) {
      float largest = 0;
      for (int d = lane_of_thread(); d < dim_; d += warp_lanes) {
        const float size = size_of(plain(g, d));
        largest = size > largest ? size : largest;
      }
      largest = warp_max(largest);
      if (lane_of_thread() == 0) m_.largest[g] = largest;
    }
  }

  __device__ void choose_units() {
    const int quads_of_head = (dim_ + 3) / 4;
    for (int g = thread(); g < m_.scorer.at.padded_heads(); g += Threads) {
      double whole = 0, largest = 0;
      for (int i = 0; g < heads_ && i < quads_of_head; ++i) {
        const double sum = quads()[g * quads_of_head + i];
        whole += sum;
        largest = sum > largest ? sum : largest;
      }
      m_.c[g] = sign_table_unit(whole, largest, Wide);
    }
  }

  /// To memory, and those of a single pass to shared memory too.
  __device__ void fill_page_queries() {
    constexpr int heads = 4 * Words;
    const sign_sum_record& at = m_.scorer.at;
    auto* const out = reinterpret_cast<float*>(prepared() + at.page_queries);
    for (int i = thread(); i < at.page_dim * at.padded_heads(); i += Threads) {
      const int pass = i / (at.page_dim * heads), d = i / heads % at.page_dim, g = pass * heads + i % heads;
      const bool there = g < heads_ && d < dim_;
      const float q = there ? page_query_component(plain(g, d), power_of_two(-exponent_of(m_.largest[g]) - 1)) : 0.0f;
      out[i] = q;
      if (at.passes == 1) m_.scorer.queries[i] = q;
    }
  }

  /// Entry i of four coordinates: the floor of c times the sum of |q_j| over those whose sign is bit j of i.
  __device__ void fill_tables() {
    constexpr int heads = 4 * Words;
    const sign_sum_record& at = m_.scorer.at;
    for (int i = thread(); i < at.padded_heads() * at.rows * 2; i += Threads) {
      const int g = i % at.padded_heads(), quad = i / at.padded_heads();
      double set[4], clear[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int d = 4 * quad + j;
        const float q = g < heads_ && d < dim_ ? rotated(g, d) : 0.0f;
        const bool positive = g < heads_ && d < dim_ && q >= 0;
        set[j] = positive ? static_cast<double>(size_of(q)) : 0;
        clear[j] = positive ? 0 : static_cast<double>(size_of(q));
      }
      auto* const table =
          reinterpret_cast<std::uint8_t*>(m_.scorer.record + at.tables + g / heads * at.table_bytes() + quad * 64 * Words + g % heads);
      int sum = 0;
#pragma unroll
      for (int e = 0; e < 16; ++e) {
        double size = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const double with = set[j], without = clear[j];
          size += (e >> j & 1) != 0 ? with : without;
        }
        const int entry = static_cast<int>(m_.c[g] * size);
        table[e * 4 * Words] = static_cast<std::uint8_t>(entry);
        sum += entry;
      }
      atomicAdd(&m_.entries[g], sum);
    }
  }

  __device__ void find_tops() {
    const int padded = m_.scorer.at.padded_heads();
    for (int from = 0; from < samples_; from += sampled_at_once) {
      const int count = samples_ - from < sampled_at_once ? samples_ - from : sampled_at_once;
      if (paged_) {
        m_.scorer.template dots<Threads, Words>(prepared(), m_.scorer.at.passes == 1, dim_, count, mean_of(from),
                                                [&](int p, int head, float dot) { m_.dots[p * padded + head] = dot; });
      } else {
        for (int i = thread(); i < count * padded; i += Threads) m_.dots[i] = 0;
        __syncthreads();
      }
      for (int p = thread(); p < count; p += Threads) {
        double top = 0;
        m_.tops[from + p] = page_top(m_.units, m_.dots + p * padded, heads_, top) ? top : static_cast<double>(quiet_nan);
      }
      __syncthreads();
    }
  }

  /// Mean of the tops in their order, and the common word. By one warp.
  __device__ void choose_word() {
    if (warp_of_thread() != 0) return;
    double base = 0;
    if (lane_of_thread() == 0) {
      int found = 0;
      for (int i = 0; i < samples_; ++i) {
        if (!(m_.tops[i] == m_.tops[i])) continue;
        base += m_.tops[i];
        ++found;
      }
      if (found > 0) base /= found;
    }
    base = __shfl_sync(all_lanes, base, 0);
    double spread = 0, unit = 0;
    for (int i = lane_of_thread(); i < samples_; i += warp_lanes) {
      const double distance = m_.tops[i] < base ? base - m_.tops[i] : m_.tops[i] - base;
      spread = distance > spread ? distance : spread;
    }
    for (int g = lane_of_thread(); g < heads_; g += warp_lanes) unit = m_.units[g].used && m_.units[g].sum > unit ? m_.units[g].sum : unit;
    spread = warp_max(spread);
    unit = warp_max(unit);
    if (lane_of_thread() != 0) return;
    m_.base_and_word[0] = base;
    m_.base_and_word[1] = common_word(unit, spread, Wide ? simd::wide_steps : simd::narrow_steps);
  }

  __device__ void fill_record() {
    constexpr int steps = Wide ? simd::wide_steps : simd::narrow_steps, middle = Wide ? simd::wide_middle : simd::narrow_middle;
    for (int g = thread(); g < m_.scorer.at.padded_heads(); g += Threads) {
      const head_words w = g < heads_ ? words_of(m_.units[g], m_.base_and_word[1], m_.base_and_word[0], steps, middle) : head_words{};
      m_.scorer.ratios()[g] = w.ratio;
      m_.scorer.centres()[g] = w.centre;
      m_.scorer.page_scales()[g] = w.page_scale;
      m_.scorer.head_offsets()[g] = w.offset;
    }
    m_.scorer.fill_factors(Threads);
  }

  /// The first look at sampled keys, by coarse_scale.
  __device__ void score_samples() {
    const int planes = plane_bytes(dim_);
    for (int from = 0; from < samples_; from += sampled_at_once) {
      const int count = samples_ - from < sampled_at_once ? samples_ - from : sampled_at_once;
      m_.scorer.template fill_words<Threads, Words>(prepared(), m_.scorer.at.passes == 1, dim_, count, mean_of(from),
                                                    [](int, int, float) {});
      for_keys(from, from + count, [&](int sample, int slot, int keys, std::uint32_t mask) {
        if (mask == 0) return;
        const auto* const signs = reinterpret_cast<const std::uint8_t*>(columns_.signs.at(m_.ids[sample], head_));
        const std::uint8_t* const norm = norms(sample);
        const std::uint32_t scores =
            mask & m_.scorer.template score<Words, Wide>(signs + slot, tokens_, planes, norm != nullptr ? norm + slot : nullptr, keys,
                                                         sample - from);
        for (int j = 0; j < keys; ++j) {
          if ((scores >> 8 * j & 255) != no_score) atomicAdd(&m_.histogram[scores >> 8 * j & 255], 1u);
        }
      });
      __syncthreads();
    }
  }

  __device__ void choose_bytes() {
    if (warp_of_thread() != 0) return;
    const warp_histogram found(m_.histogram);
    const std::int64_t keys = found.keys();
    const int lowest = found.byte_at(twentieth_place(keys)), largest = found.largest();
    if (lane_of_thread() != 0 || keys == 0) return;
    const byte_scale bytes = byte_scale_of(lowest, largest);
    m_.scorer.numbers().low = bytes.low;
    m_.scorer.numbers().gain = bytes.gain;
  }

  const bucket_search& s_;
  const scanned_columns& columns_;
  const unit_zone& zone_;
  const std::int64_t unit_;
  const device_queries in_;
  const double kappa_;
  const int dim_, tokens_, heads_;
  const bool mean_, paged_;
  const std::int64_t head_;
  const sign_sum_shared m_;
  int samples_ = 0;
};

}  // namespace kvx
