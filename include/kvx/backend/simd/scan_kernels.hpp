// The kernels of scan_table, once per instruction set: included by dispatch.hpp behind kernels.hpp, under the same rules. What a set
// must bring is the struct bytes, vectors of bytes and words, and dot_lanes.

inline constexpr int scan_vectors = scan_block / bytes::width;

/// Words of one block of keys, in the order that unpacking bytes gives them.
struct block_words {
  bytes::w first[scan_vectors];
  bytes::w second[scan_vectors];
};

/// Sums of Q heads' sign tables over one block: (S - middle) * steps in words. `heads` tables of a plane lie side by side.
template <int Q, bool Wide>
[[gnu::always_inline]] inline void sign_sums(const std::uint8_t* tables, int heads, int planes, const std::uint8_t* signs,
                                             std::int64_t pitch, const std::uint8_t* next, block_words (&sums)[Q]) {
  bytes::b sum[Q][scan_vectors];                                                                    // sum (Q, 64)
#pragma GCC unroll 4
  for (int g = 0; g < Q; ++g) {
#pragma GCC unroll 4
    for (int v = 0; v < scan_vectors; ++v) {
      sum[g][v] = bytes::set(Wide ? 0 : narrow_middle);
      if constexpr (Wide) sums[g].first[v] = sums[g].second[v] = bytes::set_words(-wide_middle);
    }
  }
  for (int p = 0; p < planes; ++p, signs += pitch, next += pitch, tables += 32 * heads) {
    __builtin_prefetch(next, 0, 3);
    bytes::b low[scan_vectors], high[scan_vectors];
#pragma GCC unroll 4
    for (int v = 0; v < scan_vectors; ++v) {
      const bytes::b x = bytes::load(signs + v * bytes::width);
      low[v] = bytes::low_bits(x);
      high[v] = bytes::high_bits(x);
    }
#pragma GCC unroll 4
    for (int g = 0; g < Q; ++g) {
      const auto first = bytes::table(tables + 32 * g);
#pragma GCC unroll 4
      for (int v = 0; v < scan_vectors; ++v) sum[g][v] = bytes::add(sum[g][v], bytes::look_up(first, low[v]));
      const auto second = bytes::table(tables + 32 * g + 16);
#pragma GCC unroll 4
      for (int v = 0; v < scan_vectors; ++v) sum[g][v] = bytes::add(sum[g][v], bytes::look_up(second, high[v]));
    }
    if constexpr (Wide) {
      if (p % 2 == 0 && p + 1 < planes) continue;
#pragma GCC unroll 4
      for (int g = 0; g < Q; ++g) {
#pragma GCC unroll 4
        for (int v = 0; v < scan_vectors; ++v) {
          sums[g].first[v] = bytes::add_words(sums[g].first[v], bytes::first_words(sum[g][v], bytes::set(0)));
          sums[g].second[v] = bytes::add_words(sums[g].second[v], bytes::second_words(sum[g][v], bytes::set(0)));
          sum[g][v] = bytes::set(0);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int g = 0; g < Q; ++g) {
#pragma GCC unroll 4
    for (int v = 0; v < scan_vectors; ++v) {
      sums[g].first[v] = Wide ? bytes::times_4(sums[g].first[v]) : bytes::first_words(bytes::set(0), sum[g][v]);
      sums[g].second[v] = Wide ? bytes::times_4(sums[g].second[v]) : bytes::second_words(bytes::set(0), sum[g][v]);
    }
  }
}

/// The largest score of Q heads, and of `best` where there are heads before them.
template <int Q, bool Wide>
inline void best_of(const sign_scan& s, const std::uint8_t* tables, int heads, int head, const std::uint8_t* signs, std::int64_t pitch,
                    const std::uint8_t* next, const block_words& factor, const std::int16_t* offsets, block_words& best) {
  block_words sums[Q], largest = best;
  constexpr bool all = lanes::most_queries == scan_heads;  // of the heads side by side: then their number is a constant
  sign_sums<Q, Wide>(tables, all ? Q : heads, s.planes, signs, pitch, next, sums);
#pragma GCC unroll 4
  for (int g = 0; g < Q; ++g) {
    const bytes::w ratio = bytes::set_words(s.ratios[head + g]);
    const bytes::w centre = bytes::set_words(s.centres[head + g]);
    const bytes::w offset = bytes::set_words(offsets[head + g]);
#pragma GCC unroll 4
    for (int v = 0; v < scan_vectors; ++v) {
      const bytes::w x = bytes::add_words(bytes::multiply(sums[g].first[v], ratio), centre);
      const bytes::w y = bytes::add_words(bytes::multiply(sums[g].second[v], ratio), centre);
      largest.first[v] = bytes::larger_words(largest.first[v], bytes::add_words(bytes::multiply(x, factor.first[v]), offset));
      largest.second[v] = bytes::larger_words(largest.second[v], bytes::add_words(bytes::multiply(y, factor.second[v]), offset));
    }
  }
  best = largest;
}

/// Norms over the reference, times 2^15: 2^(-i / 8), i the distance of the norm bytes, 63 at most.
[[gnu::always_inline]] inline void norm_factors(const std::uint8_t* norms, std::uint8_t reference, block_words& factor) {
  for (int v = 0; v < scan_vectors; ++v) {
    const bytes::b distance =
        bytes::smaller(bytes::minus_at_least_0(bytes::set(reference), bytes::load(norms + v * bytes::width)), bytes::set(63));
    const bytes::b eighth = bytes::bits_and(distance, bytes::set(7));
    const bytes::b low = bytes::look_up(bytes::table(eighths.low), eighth);
    const bytes::b high = bytes::look_up(bytes::table(eighths.high), eighth);
    const bytes::b power = bytes::look_up(bytes::table(eighths.powers), bytes::shift_right<3>(distance));
    const bytes::b zero = bytes::set(0);
    factor.first[v] = bytes::multiply_high(bytes::first_words(low, high), bytes::first_words(zero, power));
    factor.second[v] = bytes::multiply_high(bytes::second_words(low, high), bytes::second_words(zero, power));
  }
}

template <bool Wide>
inline void sign_scores_of(const sign_scan& s, const scan_page& page, const std::int16_t* offsets, std::uint8_t* scores) {
  for (int t = 0; t < page.tokens; t += scan_block) {
    block_words factor, best;
    for (int v = 0; v < scan_vectors; ++v) {
      factor.first[v] = factor.second[v] = bytes::set_words(32767);
      best.first[v] = best.second[v] = bytes::set_words(-32768);
    }
    if (page.norms != nullptr) norm_factors(page.norms + t, s.reference, factor);
    const std::uint8_t* tables = s.tables;
    const std::uint8_t* const next = (page.next != nullptr ? page.next : page.signs) + t;
    for (int g = 0; g < s.heads; g += scan_heads) {
      const int count = s.heads - g < scan_heads ? s.heads - g : scan_heads;
      const std::uint8_t* const signs = page.signs + t;
      for (int h = 0; h < count; h += lanes::most_queries) {
        const std::uint8_t* const first = tables + 32 * h;
        switch (count - h) {
          case 1: best_of<1, Wide>(s, first, count, g + h, signs, page.pitch, next, factor, offsets, best); break;
          case 2: best_of<at_most(2), Wide>(s, first, count, g + h, signs, page.pitch, next, factor, offsets, best); break;
          case 3: best_of<at_most(3), Wide>(s, first, count, g + h, signs, page.pitch, next, factor, offsets, best); break;
          default: best_of<at_most(4), Wide>(s, first, count, g + h, signs, page.pitch, next, factor, offsets, best);
        }
      }
      tables += static_cast<std::int64_t>(32) * count * s.planes;
    }
    const bytes::w low = bytes::set_words(s.low);
    const bytes::w gain = bytes::set_words(s.gain);
    for (int v = 0; v < scan_vectors; ++v) {
      const bytes::w first = bytes::multiply(bytes::subtract_words(best.first[v], low), gain);
      const bytes::w second = bytes::multiply(bytes::subtract_words(best.second[v], low), gain);
      bytes::b score = bytes::larger(bytes::clamp(first, second), bytes::set(1));
      if (page.norms != nullptr) score = bytes::zero_where_zero(score, bytes::load(page.norms + t + v * bytes::width));
      bytes::store(scores + t + v * bytes::width, score);
    }
  }
}

inline void sign_scores(const sign_scan& s, const scan_page& page, const std::int16_t* offsets, std::uint8_t* scores) {
  if (s.planes > narrow_planes) {
    sign_scores_of<true>(s, page, offsets, scores);
  } else {
    sign_scores_of<false>(s, page, offsets, scores);
  }
}

/// Votes of buckets of eight signs: the three bits of a weight are looked up as sets and counted apart.
inline void bucket_votes(const vote_scan& s, const std::uint8_t* signs, std::int64_t pitch, const std::uint8_t* next, block_words& votes) {
  alignas(16) static constexpr std::uint8_t bit_of[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  for (int v = 0; v < scan_vectors; ++v) {
    bytes::b count[3] = {bytes::set(0), bytes::set(0), bytes::set(0)};
    const std::uint8_t* sets = s.bits;
    for (int p = 0; p < s.planes; ++p, sets += 96) {
      if (v == 0) __builtin_prefetch(next + p * pitch, 0, 3);
      const bytes::b x = bytes::load(signs + p * pitch + v * bytes::width);
      const bytes::b bit = bytes::look_up(bytes::table(bit_of), bytes::high_bits(x));
      const bytes::b below = bytes::bits_and(x, bytes::set(0x8f));      // looks up 0 for buckets from 128 on
      const bytes::b above = bytes::bits_xor(below, bytes::set(0x80));  // looks up 0 for those before
#pragma GCC unroll 3
      for (int i = 0; i < 3; ++i) {
        count[i] = bytes::count(count[i], bytes::look_up(bytes::table(sets + 32 * i), below),
                                bytes::look_up(bytes::table(sets + 32 * i + 16), above), bit);
      }
    }
    const bytes::b zero = bytes::set(0);
    votes.first[v] = votes.second[v] = bytes::set_words(0);
    for (int i = 2; i >= 0; --i) {
      votes.first[v] = bytes::add_words(bytes::add_words(votes.first[v], votes.first[v]), bytes::first_words(count[i], zero));
      votes.second[v] = bytes::add_words(bytes::add_words(votes.second[v], votes.second[v]), bytes::second_words(count[i], zero));
    }
  }
}

/// Votes of buckets of four signs: weights are looked up as they are; 16 plane bytes add up to 192 at most.
inline void nibble_votes(const vote_scan& s, const std::uint8_t* signs, std::int64_t pitch, block_words& votes) {
  for (int v = 0; v < scan_vectors; ++v) {
    const bytes::b zero = bytes::set(0);
    votes.first[v] = votes.second[v] = bytes::set_words(0);
    for (int start = 0; start < s.planes; start += 16) {
      bytes::b sum = zero;
      for (int p = start; p < s.planes && p < start + 16; ++p) {
        const bytes::b x = bytes::load(signs + p * pitch + v * bytes::width);
        sum = bytes::add(sum, bytes::look_up(bytes::table(s.weights + 32 * p), bytes::low_bits(x)));
        sum = bytes::add(sum, bytes::look_up(bytes::table(s.weights + 32 * p + 16), bytes::high_bits(x)));
      }
      votes.first[v] = bytes::add_words(votes.first[v], bytes::first_words(sum, zero));
      votes.second[v] = bytes::add_words(votes.second[v], bytes::second_words(sum, zero));
    }
  }
}

inline void vote_scores(const vote_scan& s, const scan_page& page, std::uint8_t* scores) {
  for (int t = 0; t < page.tokens; t += scan_block) {
    block_words votes;
    if (s.subspace == 8) {
      bucket_votes(s, page.signs + t, page.pitch, (page.next != nullptr ? page.next : page.signs) + t, votes);
    } else {
      nibble_votes(s, page.signs + t, page.pitch, votes);
    }
    for (int v = 0; v < scan_vectors; ++v) {
      const bytes::b votes_of_key = bytes::clamp(bytes::shift_words(votes.first[v], s.shift), bytes::shift_words(votes.second[v], s.shift));
      bytes::b score = bytes::add(votes_of_key, bytes::set(1));
      if (page.norms != nullptr) score = bytes::zero_where_zero(score, bytes::load(page.norms + t + v * bytes::width));
      bytes::store(scores + t + v * bytes::width, score);
    }
  }
}

template <int Q>
inline void page_dots_of(const float* q, std::int64_t pitch, const bf16* mean, int dim, float* sums) {
  dot_lanes sum[Q];                                                                                 // sum (Q, 16 lanes)
#pragma GCC unroll 4
  for (int g = 0; g < Q; ++g) sum[g].clear();
  for (int d = 0; d < dim; d += 16) {
    bf16 rest[16] = {};
    const bf16* x = mean + d;
    if (d + 16 > dim) {
      for (int j = 0; d + j < dim; ++j) rest[j] = x[j];
      x = rest;
    }
    const dot_lanes m = dot_lanes::load(x);
#pragma GCC unroll 4
    for (int g = 0; g < Q; ++g) sum[g].add_products(m, q + g * pitch + d);
  }
  if constexpr (Q == 4) {
    dot_lanes::sum4(sum, sums);
  } else {
#pragma GCC unroll 4
    for (int g = 0; g < Q; ++g) sums[g] = sum[g].sum();
  }
}

inline void page_dots(const float* q, std::int64_t pitch, int heads, const bf16* mean, int dim, float* sums) {
  for (int g = 0; g < heads; g += lanes::most_queries) {
    switch (heads - g) {
      case 1: page_dots_of<1>(q + g * pitch, pitch, mean, dim, sums + g); break;
      case 2: page_dots_of<at_most(2)>(q + g * pitch, pitch, mean, dim, sums + g); break;
      case 3: page_dots_of<at_most(3)>(q + g * pitch, pitch, mean, dim, sums + g); break;
      default: page_dots_of<at_most(4)>(q + g * pitch, pitch, mean, dim, sums + g);
    }
  }
}

/// Four at a time: signs of scores are random, and branches on them would be guessed wrongly half of the time.
inline void page_words(const float* dots, const double* scales, const double* offsets, int heads, std::int16_t* words) {
  int g = 0;
  for (; g + 4 <= heads; g += 4) word_lanes::four(dots + g, scales + g, offsets + g, words + g);
  for (; g < heads; ++g) words[g] = word_of(scales[g] * static_cast<double>(dots[g]) + offsets[g]);
}

inline std::int64_t count_above(const std::uint8_t* scores, std::int64_t n, int level) {
  std::int64_t count = 0, t = 0;
  std::uint64_t above, equal;
  for (; t + scan_block <= n; t += scan_block) {
    bytes::compare(scores + t, static_cast<std::uint8_t>(level), above, equal);
    count += __builtin_popcountll(above);
  }
  for (; t < n; ++t) count += scores[t] > level ? 1 : 0;
  return count;
}

inline std::int64_t select(const std::uint8_t* scores, std::int64_t n, int level, std::int64_t& ties, std::int32_t first,
                           std::int32_t* out) {
  std::int32_t* end = out;
  for (std::int64_t t = 0; t < n; t += scan_block) {
    std::uint8_t rest[scan_block] = {};
    const std::uint8_t* block = scores + t;
    if (t + scan_block > n) {
      for (std::int64_t j = 0; t + j < n; ++j) rest[j] = block[j];
      block = rest;
    }
    std::uint64_t taken, equal;
    bytes::compare(block, static_cast<std::uint8_t>(level), taken, equal);
    if (ties > 0 && equal != 0) {
      const int count = __builtin_popcountll(equal);
      if (count <= ties) {
        ties -= count;
        taken |= equal;
      } else {
        for (; ties > 0; --ties, equal &= equal - 1) taken |= equal & (~equal + 1);
      }
    }
    if (taken != 0) end = bytes::write(taken, first + static_cast<std::int32_t>(t), end);
  }
  return end - out;
}

template <>
inline constexpr scan_table functions<scan_table> = {sign_scores, vote_scores, page_dots, page_words, count_above, select};
