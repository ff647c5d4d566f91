// The kernels of encode_table, once per instruction set: included by dispatch.hpp behind kernels.hpp, under the same rules. Every key has a
// lane of its own, so that each sum runs in the order of the scalar rules; what a set must bring is the struct encode_lanes.

/// Sums of C chunks of all rows, in registers. Rest: the last chunk is not whole.
template <class E, int C, bool Rest>
[[gnu::always_inline]] inline void key_sums_of(const E* rows, std::int64_t stride, int n, int dim, int d, float* sums) {
  constexpr int step = 2 * lanes::width;
  const typename chunk<E>::tail rest(Rest ? dim - d : 0);
  lanes::f a[C], b[C];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) a[c] = b[c] = lanes::set(0);
  for (int t = 0; t < n; ++t) {
    const E* const row = rows + t * stride + d;
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      lanes::f x, y;
      if constexpr (Rest) {
        chunk<E>::load(row + c * step, rest, x, y);
      } else {
        chunk<E>::load(row + c * step, x, y);
      }
      a[c] = lanes::add(a[c], x);
      b[c] = lanes::add(b[c], y);
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    lanes::store(sums + d + c * step, a[c]);
    lanes::store(sums + d + c * step + lanes::width, b[c]);
  }
}

template <class E>
inline void key_sums(const E* rows, std::int64_t stride, int n, int dim, float* sums) {
  constexpr int step = 2 * lanes::width;
  int d = 0;
  for (; d + 4 * step <= dim; d += 4 * step) key_sums_of<E, 4, false>(rows, stride, n, dim, d, sums);
  for (; d + step <= dim; d += step) key_sums_of<E, 1, false>(rows, stride, n, dim, d, sums);
  if (d < dim) key_sums_of<E, 1, true>(rows, stride, n, dim, d, sums);
}

/// lane_position of a set: its own text, which the linker cannot merge with that of another.
template <class E>
[[gnu::always_inline]] inline int position(int d) {
  constexpr bool pairs = lane_position<E>(1, lanes::width) != 1;
  constexpr int W = lanes::width;
  return pairs ? d / (2 * W) * (2 * W) + d % 2 * W + d % (2 * W) / 2 : d;
}

template <class E>
inline void key_mean(float* sums, int dim, float count, bf16* mean) {
  constexpr int step = 2 * lanes::width;
  const int whole = (dim + step - 1) / step * step;
  bf16 rounded[encode_pitch];
  for (int d = 0; d < whole; d += lanes::width) lanes::store(sums + d, lanes::div(lanes::load(sums + d), lanes::set(count)));
  narrow(sums, whole, rounded);
  widen(rounded, whole, sums);
  for (int d = 0; d < whole; d += lanes::width) {
    const lanes::f m = lanes::load(sums + d);
    const lanes::mask finite = lanes::less(encode_lanes::absolute(m), lanes::set(__builtin_inff()));
    lanes::store(sums + d, lanes::select(finite, m, lanes::set(0)));
  }
  narrow(sums, whole, rounded);
  for (int d = 0; d < dim; ++d) mean[d] = rounded[position<E>(d)];
}

/// flip(balance_d (v_d - centre_d)) for the components d of a vector in lane order.
[[gnu::always_inline]] inline lanes::f prepared(const encode_task& task, lanes::f v, int d) {
  v = lanes::mul(lanes::sub(v, lanes::load(task.centre + d)), lanes::load(task.balance + d));
  return encode_lanes::flip(v, lanes::load(task.flips + d));
}

/// x[d][t] = flip(balance_d (row_t[d] - centre_d)), n <= width rows, repeated up to width.   x (dim, width)
template <class E>
inline void load_columns(const encode_task& task, const E* rows, std::int64_t stride, int n, float* x) {
  constexpr int W = lanes::width;
  constexpr bool pairs = lane_position<E>(1, W) != 1;  // a chunk is even components, then odd ones
  for (int d = 0; d < task.dim; d += 2 * W) {
    const bool whole = d + 2 * W <= task.dim;
    const typename chunk<E>::tail rest(whole ? 0 : task.dim - d);
    alignas(64) float first[W * W], second[W * W];  // (keys, lanes)
    for (int t = 0; t < W; ++t) {
      const E* const row = rows + (t < n ? t : n - 1) * stride + d;
      lanes::f a, b;
      if (whole) {
        chunk<E>::load(row, a, b);
      } else {
        chunk<E>::load(row, rest, a, b);
      }
      lanes::store(first + t * W, prepared(task, a, d));
      lanes::store(second + t * W, prepared(task, b, d + W));
    }
    float* const out = x + d * W;
    encode_lanes::transpose(first, out, pairs ? 2 * W : W);
    encode_lanes::transpose(second, out + (pairs ? W : W * W), pairs ? 2 * W : W);
  }
}

/// The levels of butterflies with strides `stride`, 2 stride, .. R / 2 stride on a block of p columns; then times scale, if it is the last.
template <int R>
inline void hadamard_pass(float* x, int p, int stride, bool last, float scale) {
  constexpr int W = lanes::width;
  constexpr int depth = R == 16 ? 4 : R == 8 ? 3 : R == 4 ? 2 : 1;
  for (int block = 0; block < p; block += R * stride) {
    for (int j = block; j < block + stride; ++j) {
      lanes::f v[R];
#pragma GCC unroll 16
      for (int k = 0; k < R; ++k) v[k] = lanes::load(x + (j + k * stride) * W);
#pragma GCC unroll 4
      for (int level = 0; level < depth; ++level) {
#pragma GCC unroll 16
        for (int k = 0; k < R; ++k) {
          const int other = k | 1 << level;
          if (other == k) continue;
          const lanes::f a = v[k];
          v[k] = lanes::add(a, v[other]);
          v[other] = lanes::sub(a, v[other]);
        }
      }
      if (last) {
#pragma GCC unroll 16
        for (int k = 0; k < R; ++k) v[k] = lanes::mul(v[k], lanes::set(scale));
      }
#pragma GCC unroll 16
      for (int k = 0; k < R; ++k) lanes::store(x + (j + k * stride) * W, v[k]);
    }
  }
}

/// rotate, but for its signs, of every key.   x (dim, width)
inline void rotate_columns(float* x, int dim) {
  while (dim > 0) {
    int p = 1;
    while (p * 2 <= dim) p *= 2;
    float scale = 1;  // 1 / sqrt(p)
    for (int rest = p; rest > 1; rest /= 4) scale *= rest == 2 ? 0x1.6a09e6p-1f : 0.5f;
    for (int stride = 1; stride < p;) {
      const int left = p / stride;
      const int radix = left < encode_lanes::radix ? left : encode_lanes::radix;
      const bool last = radix == left;
      switch (radix) {
        case 2: hadamard_pass<2>(x, p, stride, last, scale); break;
        case 4: hadamard_pass<4>(x, p, stride, last, scale); break;
        case 8: hadamard_pass<8>(x, p, stride, last, scale); break;
        default: hadamard_pass<encode_lanes::radix>(x, p, stride, last, scale);
      }
      stride *= radix;
    }
    x += p * lanes::width;
    dim -= p;
  }
}

/// A codebook of few levels, in registers.
template <int Bits>
struct encode_levels {
  encode_lanes::floats8 levels, low, high;
  lanes::f top;
  [[gnu::always_inline]] explicit inline encode_levels(const encode_book& book)
      : levels(book.levels),
        low(book.squared_thresholds),
        high(book.squared_thresholds + 1),
        top(lanes::set(book.squared_thresholds[(1 << Bits) / 2 - 1])) {}

  [[gnu::always_inline]] inline encode_lanes::i cell(lanes::f square, lanes::f radius) const {
    const encode_lanes::mask upper = encode_lanes::reaches(square, lanes::mul(radius, top));
    encode_lanes::i c = encode_lanes::add_where(upper, encode_lanes::none(), 1 << Bits >> 1);
    if constexpr (Bits == 3) {
      c = encode_lanes::add_where(encode_lanes::reaches(square, lanes::mul(radius, high[c])), c, 2);
      c = encode_lanes::add_where(encode_lanes::reaches(square, lanes::mul(radius, low[c])), c, 1);
    }
    return c;
  }
  [[gnu::always_inline]] inline lanes::f level(encode_lanes::i c) const { return levels[c]; }
};

/// A codebook of 128 levels, in memory.
template <>
struct encode_levels<7> {
  encode_book book;
  [[gnu::always_inline]] explicit inline encode_levels(const encode_book& b) : book(b) {}

  [[gnu::always_inline]] inline encode_lanes::i cell(lanes::f square, lanes::f radius) const {
    encode_lanes::i c = encode_lanes::none();
#pragma GCC unroll 7
    for (int step = 64; step > 0; step /= 2) {
      const lanes::f border = lanes::mul(radius, encode_lanes::gather(book.squared_thresholds + step - 1, c));
      c = encode_lanes::add_where(encode_lanes::reaches(square, border), c, step);
    }
    return c;
  }
  [[gnu::always_inline]] inline lanes::f level(encode_lanes::i c) const { return encode_lanes::gather(book.levels, c); }
};

/// Bit p of numbers below 8, in byte p + 1.
inline constexpr std::int32_t plane_bits[8] = {0, 0x100, 0x10000, 0x10100, 0x1000000, 0x1000100, 0x1010000, 0x1010100};

/// Codes N coordinates of one byte of the planes: bits into words (bytes sign, planes 0..2; planes 3..6), level |x| onto sum.
template <int Bits, int N>
[[gnu::always_inline]] inline void encode_coordinates(const float* x, int bit, lanes::f radius, const encode_levels<Bits>& book,
                                                      lanes::f& sum, encode_lanes::i* words) {
  const encode_lanes::ints8 planes(plane_bits);
#pragma GCC unroll 8
  for (int j = 0; j < N; ++j) {
    const lanes::f v = lanes::load(x + j * lanes::width);
    const encode_lanes::i c = book.cell(lanes::mul(v, v), radius);
    sum = lanes::add(sum, encode_lanes::absolute(encode_lanes::rounded(lanes::mul(book.level(c), v))));
    encode_lanes::i w = planes[Bits > 3 ? encode_lanes::both(c, 7) : c];
    w = encode_lanes::add_where(encode_lanes::reaches(v, lanes::set(0)), w, 1);
    words[0] = encode_lanes::either(words[0], encode_lanes::up(w, bit + j));
    if constexpr (Bits > 3) {  // four bits, one to a byte
      const encode_lanes::i high = encode_lanes::both(encode_lanes::times(encode_lanes::down(c, 3), 0x204081), 0x1010101);
      words[1] = encode_lanes::either(words[1], encode_lanes::up(high, bit + j));
    }
  }
}

/// The bits of n keys, from one word a key and plane byte to where they belong.   words (Bits > 3 ? 2 : 1, bytes, width)
template <int Bits>
inline void store_planes(const encode_task& task, const float* words, std::int64_t words_pitch, int slot, int n) {
  constexpr int W = lanes::width;
  const int bytes = (task.dim + 7) / 8;
  for (int y = 0; y < bytes; ++y) encode_lanes::store_bytes(words + y * W, 0, n, task.signs + std::int64_t{y} * task.page_tokens + slot);
  for (int y = 0; Bits > 0 && y < bytes; y += W) {
    alignas(64) float keys[2][W * W];  // (keys, bytes)
    const int count = bytes - y < W ? bytes - y : W;
    encode_lanes::transpose(words + y * W, keys[0], W);
    if constexpr (Bits > 3) encode_lanes::transpose(words + words_pitch + y * W, keys[1], W);
    for (int t = 0; t < n; ++t) {
      std::uint8_t* const out = task.magnitudes + std::int64_t{slot + t} * Bits * bytes + y;
#pragma GCC unroll 7
      for (int p = 0; p < Bits; ++p) encode_lanes::store_bytes(keys[(p + 1) / 4] + t * W, (p + 1) % 4, count, out + p * bytes);
    }
  }
}

/// w = square radius / sum of levels, at most the largest half, 0 for a subspace that is zero.   radii, sums (weights, width)
inline void store_weights(const encode_task& task, const float* radii, const float* sums, int weights, int slot, int n) {
  constexpr int W = lanes::width;
  for (int b = 0; b < weights; b += W) {
    alignas(64) float quotients[W * W], keys[W * W];
    const int count = weights - b < W ? weights - b : W;
    for (int j = 0; j < W; ++j) {
      const int k = (b + (j < count ? j : 0)) * W;
      const lanes::f radius = lanes::load(radii + k);
      const lanes::f w = lanes::div(radius, lanes::load(sums + k));
      const lanes::f most = lanes::select(lanes::less(lanes::set(65504.0f), w), lanes::set(65504.0f), w);
      lanes::store(quotients + j * W, lanes::select(lanes::less(lanes::set(0), radius), most, lanes::set(0)));
    }
    encode_lanes::transpose(quotients, keys, W);
    for (int t = 0; t < n; ++t) narrow(keys + t * W, count, task.weights + std::int64_t{slot + t} * weights + b);
  }
}

/// Encodes at most `width` keys.
template <class E, int Bits>
inline void encode_keys_of(const encode_task& task, const E* rows, std::int64_t stride, int slot, int n, float* square_norms) {
  constexpr int W = lanes::width;
  constexpr int most_bytes = (longest_key / 8 + W - 1) / W * W;
  constexpr int word_count = Bits > 3 ? 2 : 1;
  alignas(64) float x[encode_pitch * W];  // x (D, W)
  alignas(64) float radii[longest_key / 4 * W];  // radii (B, W)
  alignas(64) float sums[Bits > 0 ? longest_key / 4 * W : W];  // sums (B, W)
  alignas(64) float words[word_count * most_bytes * W];  // words (words, D / 8, W)
  load_columns(task, rows + slot * stride, stride, n, x);
  rotate_columns(x, task.dim);

  lanes::f norm = lanes::set(0);
  for (int d = 0, b = 0; d < task.dim; ++b) {
    lanes::f radius = lanes::set(0);
    for (const int end = d + task.subspace < task.dim ? d + task.subspace : task.dim; d < end; ++d) {
      const lanes::f v = lanes::load(x + d * W);
      radius = lanes::add(radius, encode_lanes::rounded(lanes::mul(v, v)));
    }
    lanes::store(radii + b * W, radius);
    norm = lanes::add(norm, radius);
  }
  float norms[W];
  lanes::store(norms, norm);
  for (int t = 0; t < n; ++t) square_norms[t] = norms[t];
  if (task.one_weight) lanes::store(radii, norm);

  const int run = task.subspace < 8 ? task.subspace : 8;
  const lanes::f shared = lanes::div(norm, lanes::set(task.divisor));
  lanes::f sum = lanes::set(0);
  encode_lanes::i w[2] = {encode_lanes::none(), encode_lanes::none()};
  for (int d = 0; d < task.dim; d += run) {
    const int b = task.one_weight ? 0 : d / task.subspace;
    const int count = task.dim - d < run ? task.dim - d : run;
    if constexpr (Bits == 0) {
      for (int j = 0; j < count; ++j) {
        const encode_lanes::mask m = encode_lanes::reaches(lanes::load(x + (d + j) * W), lanes::set(0));
        w[0] = encode_lanes::add_where(m, w[0], 1 << (d % 8 + j));
      }
    } else {
      const bool narrower = !task.one_weight && (b + 1) * task.subspace > task.dim;
      const encode_levels<Bits> book(narrower ? task.last_book : task.book);
      const lanes::f radius = task.one_weight ? shared : lanes::load(radii + b * W);
      if (count == 8) {
        encode_coordinates<Bits, 8>(x + d * W, 0, radius, book, sum, w);
      } else if (count == 4) {
        encode_coordinates<Bits, 4>(x + d * W, d % 8, radius, book, sum, w);
      } else {
        for (int j = 0; j < count; ++j) encode_coordinates<Bits, 1>(x + (d + j) * W, d % 8 + j, radius, book, sum, w);
      }
      const bool ends = task.one_weight ? d + count == task.dim : (d + count) % task.subspace == 0 || d + count == task.dim;
      if (ends) {
        lanes::store(sums + b * W, sum);
        sum = lanes::set(0);
      }
    }
    if ((d + count) % 8 == 0 || d + count == task.dim) {
      encode_lanes::store(words + d / 8 * W, w[0]);
      if constexpr (Bits > 3) encode_lanes::store(words + (most_bytes + d / 8) * W, w[1]);
      w[0] = w[1] = encode_lanes::none();
    }
  }
  store_planes<Bits>(task, words, most_bytes * W, slot, n);
  if constexpr (Bits > 0) store_weights(task, radii, sums, task.one_weight ? 1 : (task.dim + task.subspace - 1) / task.subspace, slot, n);
}

template <class E, int Bits>
inline void encode_keys(const encode_task& task, const E* rows, std::int64_t stride, int slot, int n, float* square_norms) {
  for (const int end = slot + n; slot < end; slot += lanes::width, square_norms += lanes::width) {
    encode_keys_of<E, Bits>(task, rows, stride, slot, end - slot < lanes::width ? end - slot : lanes::width, square_norms);
  }
}

template <class E>
inline constexpr mean_functions<E> means_of = {key_sums<E>, key_mean<E>};

template <>
inline constexpr encode_table functions<encode_table> = {lanes::set_name, lanes::width};
