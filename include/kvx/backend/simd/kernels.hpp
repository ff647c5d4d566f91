// The inner kernels, once per instruction set: included by dispatch.hpp inside the namespace and the target region of each set.
// No pragma once, and nothing is called but what the namespace itself holds: an inline function of another header that is compiled
// in a target region would be merged with its copies elsewhere by the linker, and then run on processors without that set.

/// e^x for x <= 0, within 2 units in the last place; below -87.33 it is 0, NaN stays NaN.
/// source: Cephes expf (Moshier), argument reduction in two parts.
[[gnu::always_inline]] inline lanes::f exp_nonpositive(lanes::f x) {
  const lanes::f lowest = lanes::set(-87.33f);
  const lanes::f y = lanes::max(lowest, x);  // x if it is NaN
  const lanes::f n = lanes::round(lanes::mul(y, lanes::set(1.44269504f)));
  const lanes::f r = lanes::fma(n, lanes::set(2.12194440e-4f), lanes::fma(n, lanes::set(-0.693359375f), y));
  lanes::f p = lanes::set(1.9875691500e-4f);
  p = lanes::fma(p, r, lanes::set(1.3981999507e-3f));
  p = lanes::fma(p, r, lanes::set(8.3334519073e-3f));
  p = lanes::fma(p, r, lanes::set(4.1665795894e-2f));
  p = lanes::fma(p, r, lanes::set(1.6666665459e-1f));
  p = lanes::fma(p, r, lanes::set(5.0000001201e-1f));
  p = lanes::fma(lanes::mul(r, r), p, lanes::add(r, lanes::set(1)));
  return lanes::select(lanes::less(x, lowest), lanes::set(0), lanes::scale(p, n));
}

/// c tanh(x / c), absolute error below 2e-7 c.
[[gnu::always_inline]] inline lanes::f soft_cap(lanes::f x, float c) {
  const lanes::f y = lanes::div(x, lanes::set(c));
  const lanes::f absolute = lanes::max(y, lanes::sub(lanes::set(0), y));
  const lanes::f e = exp_nonpositive(lanes::mul(absolute, lanes::set(-2)));
  const lanes::f t = lanes::div(lanes::sub(lanes::set(c), lanes::mul(e, lanes::set(c))), lanes::add(e, lanes::set(1)));
  return lanes::select(lanes::less(y, lanes::set(0)), lanes::sub(lanes::set(0), t), t);
}

/// The value that exponents are taken against: `max`, or 0 where no score was above -inf (so that NaN scores still show).
[[gnu::always_inline]] inline lanes::f finite_max(lanes::f max) {
  return lanes::select(lanes::less(max, lanes::set(-3.402823466e+38f)), lanes::set(0), max);
}

/// As many of n queries as the set takes in one pass.
constexpr int at_most(int n) { return n < lanes::most_queries ? n : lanes::most_queries; }

/// Asks for what a later chunk of a row needs, one line at a time between the arithmetic: the processor holds few requests open.
template <class E>
[[gnu::always_inline]] inline void prefetch_chunk(const E* row, int d) {
  constexpr int line = 64 / static_cast<int>(sizeof(E));
  constexpr int step = 2 * lanes::width;
  if (step >= line || d % line == 0) __builtin_prefetch(row + d, 0, 2);
  if (step > line) __builtin_prefetch(row + d + line, 0, 2);
}

/// Scores of Q queries against n rows, lanes::tokens(Q) rows at a time.
template <class E, int Q>
inline void dots_of(const float* q, std::int64_t pitch, const E* const* rows, int n, const E* const* next, int next_n, int dim,
                    float* scores) {
  constexpr int T = lanes::tokens(Q);
  constexpr int step = 2 * lanes::width;
  const int whole = dim / step * step;
  const typename chunk<E>::tail rest(dim - whole);
  for (int t = 0; t < n; t += T) {
    const E* row[T];
    const E* ahead[T];
#pragma GCC unroll 4
    for (int j = 0; j < T; ++j) {
      row[j] = rows[t + j < n ? t + j : n - 1];
      ahead[j] = t + j < next_n ? next[t + j] : row[j];
    }
    lanes::f sum[Q][T];                                                                             // sum (Q, T, lanes)
#pragma GCC unroll 4
    for (int g = 0; g < Q; ++g) {
#pragma GCC unroll 4
      for (int j = 0; j < T; ++j) sum[g][j] = lanes::set(0);
    }
    for (int d = 0; d < dim; d += step) {
      lanes::f a[T], b[T];
#pragma GCC unroll 4
      for (int j = 0; j < T; ++j) {
        prefetch_chunk(ahead[j], d);
        if (d < whole) {
          chunk<E>::load(row[j] + d, a[j], b[j]);
        } else {
          chunk<E>::load(row[j] + d, rest, a[j], b[j]);
        }
      }
#pragma GCC unroll 4
      for (int g = 0; g < Q; ++g) {
        const lanes::f qa = lanes::load(q + g * pitch + d);
        const lanes::f qb = lanes::load(q + g * pitch + d + lanes::width);
#pragma GCC unroll 4
        for (int j = 0; j < T; ++j) sum[g][j] = lanes::fma(a[j], qa, sum[g][j]);
#pragma GCC unroll 4
        for (int j = 0; j < T; ++j) sum[g][j] = lanes::fma(b[j], qb, sum[g][j]);
      }
    }
    if constexpr (T == 4) {
#pragma GCC unroll 4
      for (int g = 0; g < Q; ++g) lanes::sum4(sum[g][0], sum[g][1], sum[g][2], sum[g][3], scores + g * block_tokens + t);
    } else {
      float pair[4];
#pragma GCC unroll 2
      for (int g = 0; g < Q; g += 2) {
        const int h = g + 1 < Q ? g + 1 : g;
        lanes::sum4(sum[g][0], sum[g][1], sum[h][0], sum[h][1], pair);
        __builtin_memcpy(scores + g * block_tokens + t, pair, 2 * sizeof(float));
        __builtin_memcpy(scores + h * block_tokens + t, pair + (h - g) * 2, 2 * sizeof(float));
      }
    }
  }
}

template <class E>
inline void dots(const float* q, std::int64_t pitch, int count, const E* const* rows, int n, const E* const* next, int next_n, int dim,
                 float* scores) {
  for (int g = 0; g < count; g += lanes::most_queries) {
    const float* const first = q + g * pitch;
    float* const out = scores + g * block_tokens;
    switch (count - g) {
      case 1: dots_of<E, 1>(first, pitch, rows, n, next, next_n, dim, out); break;
      case 2: dots_of<E, at_most(2)>(first, pitch, rows, n, next, next_n, dim, out); break;
      case 3: dots_of<E, at_most(3)>(first, pitch, rows, n, next, next_n, dim, out); break;
      default: dots_of<E, at_most(4)>(first, pitch, rows, n, next, next_n, dim, out);
    }
    next_n = 0;
  }
}

/// C chunks of the weighted sums of Q queries, in registers over all n rows. Rest: the last chunk is not whole.
template <class E, int Q, int C, bool Rest>
[[gnu::always_inline]] inline void weighted_chunks(const float* weights, const float* factors, const E* const* rows, int n,
                                                   const E* const* next, int next_n, int dim, int d, float* sums, std::int64_t pitch) {
  constexpr int step = 2 * lanes::width;
  const typename chunk<E>::tail rest(Rest ? dim - d : 0);
  lanes::f a[Q][C], b[Q][C];                                                                        // a, b (Q, C, lanes)
#pragma GCC unroll 4
  for (int g = 0; g < Q; ++g) {
    const lanes::f factor = lanes::set(factors[g]);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      a[g][c] = lanes::mul(lanes::load(sums + g * pitch + d + c * step), factor);
      b[g][c] = lanes::mul(lanes::load(sums + g * pitch + d + c * step + lanes::width), factor);
    }
  }
  for (int t = 0; t < n; ++t) {
    if (t < next_n) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) prefetch_chunk(next[t], d + c * step);
    }
    const E* const row = rows[t] + d;
    lanes::f x[C], y[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      if constexpr (Rest) {
        chunk<E>::load(row + c * step, rest, x[c], y[c]);
      } else {
        chunk<E>::load(row + c * step, x[c], y[c]);
      }
    }
#pragma GCC unroll 4
    for (int g = 0; g < Q; ++g) {
      const lanes::f w = lanes::set(weights[g * block_tokens + t]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        a[g][c] = lanes::fma(w, x[c], a[g][c]);
        b[g][c] = lanes::fma(w, y[c], b[g][c]);
      }
    }
  }
#pragma GCC unroll 4
  for (int g = 0; g < Q; ++g) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      lanes::store(sums + g * pitch + d + c * step, a[g][c]);
      lanes::store(sums + g * pitch + d + c * step + lanes::width, b[g][c]);
    }
  }
}

/// The last components of one query's weighted sum, less than a chunk.
template <class E>
inline void weighted_rest(const float* weights, float factor, const E* const* rows, int n, const E* const* next, int next_n, int dim, int d,
                          float* sums) {
  weighted_chunks<E, 1, 1, true>(weights, &factor, rows, n, next, next_n, dim, d, sums, 0);
}

template <class E, int Q>
inline void weighted_sum_of(const float* weights, const float* factors, const E* const* rows, int n, const E* const* next, int next_n,
                            int dim, float* sums, std::int64_t pitch) {
  constexpr int step = 2 * lanes::width;
  constexpr int C = lanes::chunks(Q);
  int d = 0;
  for (; d + C * step <= dim; d += C * step) {
    weighted_chunks<E, Q, C, false>(weights, factors, rows, n, next, next_n, dim, d, sums, pitch);
  }
  if constexpr (C > 1) {
    for (; d + step <= dim; d += step) {
      weighted_chunks<E, Q, 1, false>(weights, factors, rows, n, next, next_n, dim, d, sums, pitch);
    }
  }
  for (int g = 0; d < dim && g < Q; ++g, next_n = 0) {
    weighted_rest(weights + g * block_tokens, factors[g], rows, n, next, next_n, dim, d, sums + g * pitch);
  }
}

template <class E>
inline void weighted_sum(const float* weights, const float* factors, int count, const E* const* rows, int n, const E* const* next,
                         int next_n, int dim, float* sums, std::int64_t pitch) {
  for (int g = 0; g < count; g += lanes::most_queries) {
    const float* const w = weights + g * block_tokens;
    float* const out = sums + g * pitch;
    switch (count - g) {
      case 1: weighted_sum_of<E, 1>(w, factors + g, rows, n, next, next_n, dim, out, pitch); break;
      case 2: weighted_sum_of<E, at_most(2)>(w, factors + g, rows, n, next, next_n, dim, out, pitch); break;
      case 3: weighted_sum_of<E, at_most(3)>(w, factors + g, rows, n, next, next_n, dim, out, pitch); break;
      default: weighted_sum_of<E, at_most(4)>(w, factors + g, rows, n, next, next_n, dim, out, pitch);
    }
    next_n = 0;
  }
}

inline void merge(const float* weights, const float* const* rows, int n, int dim, float* sums) {
  for (int t = 0; t < n; ++t) {
    const lanes::f w = lanes::set(weights[t]);
    for (int d = 0; d < dim; d += lanes::width) lanes::store(sums + d, lanes::fma(w, lanes::load(rows[t] + d), lanes::load(sums + d)));
  }
}

inline void row_softmax(float* scores, int count, int n, float cap, float* max, float* sum, float* factor) {
  for (int g = 0; g < count; ++g) {
    float* const s = scores + g * block_tokens;
    lanes::f largest = lanes::set(-__builtin_inff());
    for (int t = n; t % lanes::width != 0; ++t) s[t] = -__builtin_inff();
    for (int t = 0; t < n; t += lanes::width) {
      lanes::f x = lanes::load(s + t);
      if (cap > 0) {
        x = soft_cap(x, cap);
        lanes::store(s + t, x);
      }
      largest = lanes::max(x, largest);
    }
    if (cap > 0) {
      // -inf became -cap: the lanes beyond n are put back.
      largest = lanes::set(-__builtin_inff());
      for (int t = n; t % lanes::width != 0; ++t) s[t] = -__builtin_inff();
      for (int t = 0; t < n; t += lanes::width) largest = lanes::max(lanes::load(s + t), largest);
    }
    const float block_max = lanes::largest(largest);
    const float now = block_max > max[g] ? block_max : max[g];
    const lanes::f against = finite_max(lanes::set(now));
    lanes::f total = lanes::set(0);
    for (int t = 0; t < n; t += lanes::width) {
      const lanes::f e = exp_nonpositive(lanes::sub(lanes::load(s + t), against));
      lanes::store(s + t, e);
      total = lanes::add(total, e);
    }
    float old[lanes::width];
    lanes::store(old, exp_nonpositive(lanes::sub(lanes::set(max[g]), against)));
    factor[g] = old[0];
    max[g] = now;
    sum[g] = sum[g] * factor[g] + lanes::sum(total);
  }
}

inline bool all_finite(const float* x, std::int64_t n) {
  // Zero times a number is zero, times NaN or infinity it is NaN.
  lanes::f zero = lanes::set(0);
  std::int64_t i = 0;
  for (; i + lanes::width <= n; i += lanes::width) zero = lanes::fma(lanes::load(x + i), lanes::set(0), zero);
  float rest = lanes::sum(zero);
  for (; i < n; ++i) rest += x[i] * 0.0f;
  return rest == 0;
}

inline constexpr int panel_vectors = 3;
inline constexpr int panel_width = panel_vectors * lanes::width;

template <int Pitch>
inline void panel_scores(const float* keys, int n, int dim, const float* q, float* scores) {
  constexpr int R = lanes::panel_step;
  for (int t = 0; t < n; t += R) {
    lanes::f sum[R][panel_vectors];                                                                 // sum (keys, rows)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
      for (int j = 0; j < panel_vectors; ++j) sum[r][j] = lanes::set(0);
    }
    const float* key = keys + static_cast<std::int64_t>(t) * Pitch;
    const float* column = q;
    for (int d = 0; d < dim; ++d, ++key, column += panel_width) {
      lanes::f x[panel_vectors];
#pragma GCC unroll 3
      for (int j = 0; j < panel_vectors; ++j) x[j] = lanes::load(column + j * lanes::width);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const lanes::f k = lanes::set(key[r * Pitch]);
#pragma GCC unroll 3
        for (int j = 0; j < panel_vectors; ++j) sum[r][j] = lanes::fma(k, x[j], sum[r][j]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
      for (int j = 0; j < panel_vectors; ++j) lanes::store(scores + (t + r) * panel_width + j * lanes::width, sum[r][j]);
    }
  }
}

inline void panel_softmax(float* scores, int n, float cap, const float* low, const float* high, float* max, float* sum, float* factor) {
  for (int j = 0; j < panel_vectors; ++j) {
    const int w = j * lanes::width;
    float* const s = scores + w;
    const lanes::f before = lanes::load(max + w);
    lanes::f now = before;
    for (int t = 0; t < n; ++t) {
      lanes::f x = lanes::load(s + t * panel_width);
      if (cap > 0) x = soft_cap(x, cap);
      if (low != nullptr) {
        const lanes::f place = lanes::set(static_cast<float>(t));
        x = lanes::select(lanes::less(place, lanes::load(low + w)), lanes::set(-__builtin_inff()), x);
        x = lanes::select(lanes::less(place, lanes::load(high + w)), x, lanes::set(-__builtin_inff()));
      }
      if (cap > 0 || low != nullptr) lanes::store(s + t * panel_width, x);
      now = lanes::max(x, now);
    }
    const lanes::f against = finite_max(now);
    lanes::f total = lanes::set(0);
    for (int t = 0; t < n; ++t) {
      const lanes::f e = exp_nonpositive(lanes::sub(lanes::load(s + t * panel_width), against));
      lanes::store(s + t * panel_width, e);
      total = lanes::add(total, e);
    }
    const lanes::f old = exp_nonpositive(lanes::sub(before, against));
    lanes::store(factor + w, old);
    lanes::store(max + w, now);
    lanes::store(sum + w, lanes::fma(lanes::load(sum + w), old, total));
  }
}

inline void panel_weighted_sum(const float* values, std::int64_t pitch, int n, int dim, const float* weights, const float* factor,
                               float* sums) {
  constexpr int R = lanes::panel_step;
  for (int d = 0; d < dim; d += R) {
    float* const out = sums + d * panel_width;
    lanes::f sum[R][panel_vectors];                                                                 // sum (dims, rows)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
      for (int j = 0; j < panel_vectors; ++j) {
        sum[r][j] = lanes::mul(lanes::load(out + r * panel_width + j * lanes::width), lanes::load(factor + j * lanes::width));
      }
    }
    const float* value = values + d;
    const float* weight = weights;
    for (int t = 0; t < n; ++t, value += pitch, weight += panel_width) {
      lanes::f x[panel_vectors];
#pragma GCC unroll 3
      for (int j = 0; j < panel_vectors; ++j) x[j] = lanes::load(weight + j * lanes::width);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const lanes::f v = lanes::set(value[r]);
#pragma GCC unroll 3
        for (int j = 0; j < panel_vectors; ++j) sum[r][j] = lanes::fma(v, x[j], sum[r][j]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
      for (int j = 0; j < panel_vectors; ++j) lanes::store(out + r * panel_width + j * lanes::width, sum[r][j]);
    }
  }
}

template <class E>
inline constexpr row_kernels<E> rows_of = {dots<E>, weighted_sum<E>};

template <class E>
inline constexpr row_conversions<E> conversions_of = {widen<E>, narrow<E>};

/// The table of each kind: kernel_table here, the others behind their kernels.
template <class Table>
inline constexpr Table functions = {};

template <>
inline constexpr kernel_table functions<kernel_table> = {
    lanes::set_name,
    lanes::width,
    row_softmax,
    all_finite,
    {panel_width, panel_scores<short_key_pitch>, panel_softmax, panel_weighted_sum},
    {panel_width, panel_scores<long_key_pitch>, panel_softmax, panel_weighted_sum},
    merge,
};
