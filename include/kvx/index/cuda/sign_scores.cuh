#pragma once
// Scores of keys by sums of sign tables: four keys a thread, tables of four heads in each word of shared memory.

#include <kvx/backend/simd/scan_table.hpp>
#include <kvx/core/annotate.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/core/word_of.hpp>
#include <kvx/index/bucket_score.hpp>
#include <kvx/index/cuda/page_dots.cuh>
#include <kvx/index/cuda/prepared_query.cuh>
#include <kvx/layout/columns.hpp>
#include <kvx/sketch/key_norm.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// Keys that a thread takes at once: they lie in one page, and their bytes of a plane in one word.
KVX_HD constexpr int keys_at_once(int page_tokens) { return page_tokens < 4 ? 1 : 4; }

/// The bytes of so many keys that follow each other.
__device__ __forceinline__ std::uint32_t load_keys(const std::uint8_t* bytes, int keys) {
  return keys == 1 ? bytes[0] : *reinterpret_cast<const std::uint32_t*>(bytes);
}

/// Entries of the heads of one pass, as they lie in shared memory: sixteen words cover sixteen banks, so no two lanes ever conflict.
template <int Words>
struct alignas(4 * Words) table_entry {
  std::uint32_t words[Words];
};

/// Table sums of four keys for the heads of one pass.
///
/// narrow      head h of a word is byte h of `even`; wide: half word h / 2 of `even` or, odd heads, of `odd`
template <int Words, bool Wide>
struct table_sums {
  static constexpr int odd_words = Wide ? Words : 1;
  std::uint32_t even[4][Words] = {};
  std::uint32_t odd[4][odd_words] = {};

  /// Adds two plane bytes of each key. rows: two rows of the tables.
  __device__ __forceinline__ void add(const std::byte* rows, std::uint32_t first, std::uint32_t second) {
    constexpr int row = 128 * Words, half = 64 * Words;
    constexpr std::uint32_t mask = 0x0f0f0f0fu * 4 * Words;  // four bits of each key, times the bytes of an entry
    constexpr int up = Words == 1 ? 2 : Words == 2 ? 3 : 4, down = 4 - up;
    const std::uint32_t low[2] = {first << up & mask, second << up & mask}, high[2] = {first >> down & mask, second >> down & mask};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const auto& a = *reinterpret_cast<const table_entry<Words>*>(rows + (low[0] >> 8 * j & 255));
      const auto& b = *reinterpret_cast<const table_entry<Words>*>(rows + half + (high[0] >> 8 * j & 255));
      const auto& c = *reinterpret_cast<const table_entry<Words>*>(rows + row + (low[1] >> 8 * j & 255));
      const auto& d = *reinterpret_cast<const table_entry<Words>*>(rows + row + half + (high[1] >> 8 * j & 255));
#pragma unroll
      for (int w = 0; w < Words; ++w) {
        const std::uint32_t sum = a.words[w] + b.words[w] + c.words[w] + d.words[w];  // at most 255 a byte
        if constexpr (Wide) {
          even[j][w] += sum & 0x00ff00ffu;
          odd[j][w] += sum >> 8 & 0x00ff00ffu;
        } else {
          even[j][w] += sum;
        }
      }
    }
  }

  /// (sum - middle) * steps of key j, head h.
  __device__ __forceinline__ std::int16_t word(int j, int h) const {
    if constexpr (Wide) {
      const std::uint32_t pair = h % 2 == 0 ? even[j][h / 4] : odd[j][h / 4];
      const auto sum = static_cast<int>(h % 4 < 2 ? pair & 0xffffu : pair >> 16);
      return static_cast<std::int16_t>((sum - simd::wide_middle) * simd::wide_steps);
    } else {
      const auto sum = static_cast<int>(even[j][h / 4] >> 8 * (h % 4) & 255);
      return static_cast<std::int16_t>((sum - simd::narrow_middle) * simd::narrow_steps);
    }
  }
};

/// Copies bytes, a multiple of 16, between memory and shared memory. A barrier must follow.
__device__ __forceinline__ void copy_words(const std::byte* from, std::byte* to, int bytes, int threads) {
  const auto* const a = reinterpret_cast<const uint4*>(from);
  auto* const b = reinterpret_cast<uint4*>(to);
  for (int i = static_cast<int>(threadIdx.x); i < bytes / 16; i += threads) b[i] = a[i];
}

/// A prepared query in shared memory, and what the pages at hand add.
///
/// record      sign_sum_record without its page queries
/// queries     page queries of one pass
/// words       (pages, padded heads) what page and head add to a score
/// factors     (256) norm_factor of each norm byte
struct sign_scorer {
  sign_sum_record at;
  std::byte* record;
  float* queries;
  std::int16_t* words;
  std::int16_t* factors;

  KVX_HD sign_scorer(scratch_parts& shared, const sign_sum_record& r, int pages)
      : at(r),
        record(shared.take<std::byte>(r.page_queries)),
        queries(shared.take<float>(r.page_query_bytes() / 4)),
        words(shared.take<std::int16_t>(std::int64_t{r.padded_heads()} * pages)),
        factors(shared.take<std::int16_t>(256)) {}

  __device__ sign_sum_numbers& numbers() const { return *reinterpret_cast<sign_sum_numbers*>(record); }
  __device__ std::int16_t* ratios() const { return reinterpret_cast<std::int16_t*>(record + at.ratios); }
  __device__ std::int16_t* centres() const { return reinterpret_cast<std::int16_t*>(record + at.centres); }
  __device__ double* page_scales() const { return reinterpret_cast<double*>(record + at.page_scales); }
  __device__ double* head_offsets() const { return reinterpret_cast<double*>(record + at.head_offsets); }

  /// Fills `factors` for the reference byte. A barrier must follow.
  __device__ void fill_factors(int threads) const {
    const std::uint8_t reference = numbers().reference;
    for (int i = static_cast<int>(threadIdx.x); i < 256; i += threads) factors[i] = norm_factor(reference, static_cast<std::uint8_t>(i));
  }

  /// Fetches the page queries of a pass. A barrier must follow.
  __device__ void fetch_queries(const std::byte* prepared, int pass, int threads) const {
    copy_words(prepared + at.page_queries + pass * at.page_query_bytes(), reinterpret_cast<std::byte*>(queries), at.page_query_bytes(),
               threads);
  }

  /// Each head's dots with page means: keep(p, head, dot) is called once for each, by some thread. Ends in a barrier.
  ///
  /// shapes      prepared: the record in memory; `fetched`: queries hold the first pass already, and a barrier lies behind
  template <int Threads, int Words, class MeanOf, class Keep>
  __device__ __forceinline__ void dots(const std::byte* prepared, bool fetched, int dim, int count, const MeanOf& mean_of,
                                       const Keep& keep) const {
    for (int pass = 0; pass < at.passes; ++pass) {
      if (pass > 0 || !fetched) {
        fetch_queries(prepared, pass, Threads);
        __syncthreads();
      }
      page_dots<Threads, Words>(queries, dim, count, mean_of, [&](int p, int h, float dot) {
        const int head = pass * 4 * Words + h;
        if (head < at.heads) keep(p, head, dot);
      });
      __syncthreads();
    }
  }

  /// Fills `words` for `count` pages, and calls keep as dots() does. Ends in a barrier.
  template <int Threads, int Words, class MeanOf, class Keep>
  __device__ __forceinline__ void fill_words(const std::byte* prepared, bool fetched, int dim, int count, const MeanOf& mean_of,
                                             const Keep& keep) const {
    if (at.page_dim > 0) {
      dots<Threads, Words>(prepared, fetched, dim, count, mean_of, [&](int p, int head, float dot) {
        words[p * at.padded_heads() + head] = word_of(page_scales()[head] * static_cast<double>(dot) + head_offsets()[head]);
        keep(p, head, dot);
      });
      return;
    }
    for (int i = static_cast<int>(threadIdx.x); i < count * at.heads; i += Threads) {
      words[i / at.heads * at.padded_heads() + i % at.heads] = word_of(head_offsets()[i % at.heads]);
    }
    __syncthreads();
  }

  /// The byte of keys whose largest score over the heads is `best`; no_score for those of norm byte 0.
  __device__ __forceinline__ std::uint32_t byte_of(std::int16_t best, bool norms, std::uint32_t norm) const {
    return norms && norm == never_found ? no_score : score_byte(best, numbers().low, numbers().gain);
  }

  /// Scores of four keys that follow each other in a page, one below the other.
  ///
  /// shapes      signs: plane byte 0 of the first key, `pitch` bytes to the next plane; norms: their bytes, or null; page: row of words
  template <int Words, bool Wide>
  __device__ __forceinline__ std::uint32_t score_four(const std::uint8_t* signs, int pitch, int planes, const std::uint8_t* norms,
                                                      int page) const {
    constexpr int heads = 4 * Words, tile = Words == 1 ? 16 : 8;
    const std::uint32_t norm = norms != nullptr ? load_keys(norms, 4) : 0;
    std::int16_t best[4] = {-32768, -32768, -32768, -32768};
    for (int pass = 0; pass < at.passes; ++pass) {
      const std::byte* rows = record + at.tables + pass * at.table_bytes();
      const std::uint8_t* from = signs;
      table_sums<Words, Wide> sums;
      for (int left = planes; left > 0; left -= tile) {
        std::uint32_t bytes[tile];                                      // of four keys each
#pragma unroll
        for (int i = 0; i < tile; ++i) {
          bytes[i] = i < left ? *reinterpret_cast<const std::uint32_t*>(from) : 0;
          from += pitch;
        }
#pragma unroll
        for (int i = 0; i < tile; i += 4) {
          if (i < left) {
            sums.add(rows, bytes[i], bytes[i + 1]);
            sums.add(rows + 256 * Words, bytes[i + 2], bytes[i + 3]);
          }
          rows += 512 * Words;
        }
      }
#pragma unroll
      for (int h = 0; h < heads; ++h) {
        const int head = pass * heads + h;
        if (head < at.heads) {
          const std::int16_t ratio = ratios()[head], centre = centres()[head], offset = words[page * at.padded_heads() + head];
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const std::int16_t factor = norms != nullptr ? factors[norm >> 8 * j & 255] : std::int16_t{32767};
            const std::int16_t score = head_score(sums.word(j, h), ratio, centre, factor, offset);
            best[j] = score > best[j] ? score : best[j];
          }
        }
      }
    }
    std::uint32_t scores = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) scores |= byte_of(best[j], norms != nullptr, norm >> 8 * j & 255) << 8 * j;
    return scores;
  }

  /// The score of one key, for pages of less than four tokens: short, not fast.
  template <int Words, bool Wide>
  __device__ __forceinline__ std::uint32_t score_one(const std::uint8_t* signs, int pitch, int planes, const std::uint8_t* norms,
                                                     int page) const {
    constexpr int steps = Wide ? simd::wide_steps : simd::narrow_steps, middle = Wide ? simd::wide_middle : simd::narrow_middle;
    const std::int16_t factor = norms != nullptr ? factors[*norms] : std::int16_t{32767};
    std::int16_t best = -32768;
#pragma unroll 1
    for (int head = 0; head < at.heads; ++head) {
      const auto* const table =
          reinterpret_cast<const std::uint8_t*>(record) + at.tables + head / (4 * Words) * at.table_bytes() + head % (4 * Words);
      int sum = 0;
#pragma unroll 1
      for (int p = 0; p < planes; ++p) {
        const int byte = signs[p * pitch];
        sum += table[(32 * p + byte % 16) * 4 * Words] + table[(32 * p + 16 + byte / 16) * 4 * Words];
      }
      const std::int16_t score = head_score(static_cast<std::int16_t>((sum - middle) * steps), ratios()[head], centres()[head], factor,
                                            words[page * at.padded_heads() + head]);
      best = score > best ? score : best;
    }
    return byte_of(best, norms != nullptr, norms != nullptr ? *norms : 0);
  }

  /// Scores of `keys` keys, 4 or 1.
  template <int Words, bool Wide>
  __device__ __forceinline__ std::uint32_t score(const std::uint8_t* signs, int pitch, int planes, const std::uint8_t* norms, int keys,
                                                 int page) const {
    return keys == 1 ? score_one<Words, Wide>(signs, pitch, planes, norms, page)
                     : score_four<Words, Wide>(signs, pitch, planes, norms, page);
  }
};

}  // namespace kvx
