// The kernels of rerank_table, once per instruction set: included by dispatch.hpp behind kernels.hpp, under the same rules. What a set
// must bring is the struct code_lanes: chunks of 64 coordinates, 16 lanes of sums.

/// Eight bytes, `pitch` apart.
[[gnu::always_inline]] inline std::uint64_t bytes_apart(const std::uint8_t* p, std::int64_t pitch) {
  std::uint64_t x = 0;
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) x |= std::uint64_t{p[j * pitch]} << 8 * j;
  return x;
}

[[gnu::always_inline]] inline std::uint64_t eight_bytes(const std::uint8_t* p) {
  std::uint64_t x;
  __builtin_memcpy(&x, p, 8);
  return x;
}

/// Asks for the code of a key: its signs where they do not lie in the lines of the key before.
[[gnu::always_inline]] inline void prefetch_code(const code_format& f, const code_address& a, const code_address& before) {
  for (std::int64_t j = 0; j < f.magnitude_bytes; j += 64) __builtin_prefetch(a.magnitudes + j);
  __builtin_prefetch(a.magnitudes + f.magnitude_bytes - 1);
  for (std::int64_t j = 0; j < f.weights; j += 32) __builtin_prefetch(a.weights + j);
  __builtin_prefetch(a.weights + f.weights - 1);
  if (reinterpret_cast<std::uintptr_t>(a.signs) / 64 == reinterpret_cast<std::uintptr_t>(before.signs) / 64) return;
  for (int d = 0; d < f.dim; d += 8) __builtin_prefetch(a.signs + d / 8 * f.sign_pitch);
}

/// Signs of keys, chunk after chunk, 0 beyond D: (n, chunks). While key t is read, next[t] is asked for.
inline void gather_signs(const code_format& f, const code_address* keys, int n, const code_address* next, int next_n,
                         std::uint64_t* signs) {
  const std::int64_t pitch = f.sign_pitch;
  const int plane = (f.dim + 7) / 8;
  for (int t = 0; t < n; ++t) {
    if (t < next_n) prefetch_code(f, next[t], t > 0 ? next[t - 1] : keys[n - 1]);
    const std::uint8_t* p = keys[t].signs;
    int j = 0;
    for (; j + 8 <= plane; j += 8, p += 8 * pitch) *signs++ = bytes_apart(p, pitch);
    if (j == plane) continue;
    std::uint64_t rest = 0;
    for (int i = 0; j + i < plane; ++i) rest |= std::uint64_t{p[i * pitch]} << 8 * i;
    *signs++ = rest;
  }
}

/// The weights of the 16 quads of a chunk.
[[gnu::always_inline]] inline code_lanes::floats quad_weights(int subspace, const half* w) {
  return subspace == 8 ? code_lanes::twice(w) : subspace == 4 ? code_lanes::once(w) : code_lanes::four_times(w);
}

/// The last coordinates of a code as a chunk, zeros behind them.
template <int Bits>
struct code_rest {
  std::uint8_t magnitudes[8 * Bits] = {};
  half weights[code_chunk / 4] = {};

  inline code_rest(const code_format& f, const code_address& key, int first) {
    const int plane = (f.dim + 7) / 8;
    for (int p = 0; p < Bits; ++p) {
      for (int j = first / 8; j < plane; ++j) magnitudes[8 * p + j - first / 8] = key.magnitudes[p * plane + j];
    }
    for (int j = 0; f.subspace > 0 && first + j * f.subspace < f.dim; ++j) weights[j] = key.weights[first / f.subspace + j];
  }
};

/// What a chunk of a key adds to the sums of Q heads.   q (Q, 64), planes `plane` bytes apart
template <int Bits, bool OneWeight, int Q, bool Rest>
[[gnu::always_inline]] inline void add_chunk(const code_format& f, const code_lanes::table<Bits>& levels, const std::int8_t* q, int d,
                                             std::uint64_t signs, const std::uint8_t* magnitudes, std::int64_t plane, const half* weights,
                                             code_lanes::total<OneWeight>* total) {
  std::uint64_t planes[Bits];
#pragma GCC unroll 8
  for (int p = 0; p < Bits; ++p) planes[p] = eight_bytes(magnitudes + p * plane);
  code_lanes::chunk v = code_lanes::levels_of(levels, planes);                                      // v (64)
  if (Rest && f.last < f.dim) v = code_lanes::join(v, code_lanes::levels_of(code_lanes::table<Bits>(f.last_levels), planes), f.last - d);
  const code_lanes::signs s(signs);
  if constexpr (OneWeight) {
#pragma GCC unroll 4
    for (int g = 0; g < Q; ++g) total[g].add(code_lanes::quads(v, s, q + g * code_chunk));
  } else {
    const code_lanes::floats w = quad_weights(f.subspace, weights);                                 // w (16 quads)
#pragma GCC unroll 4
    for (int g = 0; g < Q; ++g) total[g].add(code_lanes::quads(v, s, q + g * code_chunk), w);
  }
}

template <int Bits, bool OneWeight, int Q>
inline void code_sums_of(const code_format& f, const std::int8_t* q, const code_address* keys, int n, const std::uint64_t* signs,
                         float* sums) {
  const code_lanes::table<Bits> levels(f.levels);
  const std::int64_t plane = (f.dim + 7) / 8, whole = f.last / code_chunk;
  const std::int64_t each = OneWeight ? 0 : code_chunk / f.subspace;
  const int first = static_cast<int>(whole) * code_chunk;  // of a chunk that is laid out: it has an end, or levels of its own
  for (int t = 0; t < n; ++t) {
    typename code_lanes::total<OneWeight> total[Q];                                                 // total (Q, 16 lanes)
#pragma GCC unroll 4
    for (int g = 0; g < Q; ++g) total[g].clear();
    const std::uint8_t* magnitudes = keys[t].magnitudes;
    const half* weights = keys[t].weights;
    const std::int8_t* query = q;
    for (const std::uint8_t* const end = magnitudes + 8 * whole; magnitudes != end; magnitudes += 8) {
      add_chunk<Bits, OneWeight, Q, false>(f, levels, query, 0, *signs++, magnitudes, plane, weights, total);
      query += Q * code_chunk;
      weights += each;
    }
    if (first < f.dim) {
      const code_rest<Bits> rest(f, keys[t], first);
      add_chunk<Bits, OneWeight, Q, true>(f, levels, query, first, *signs++, rest.magnitudes, 8, rest.weights, total);
    }
    float out[4];
    code_lanes::reduce<OneWeight, Q>(total, out);
    const float w = OneWeight ? code_lanes::one(keys[t].weights) : 1;
#pragma GCC unroll 4
    for (int g = 0; g < Q; ++g) sums[g * code_block + t] = OneWeight ? out[g] * w : out[g];
  }
}

template <int Bits, bool OneWeight>
inline void code_sums_by_four(const code_format& f, const std::int8_t* q, int count, const code_address* keys, int n,
                              const std::uint64_t* signs, float* sums) {
  if (count == 1) return code_sums_of<Bits, OneWeight, 1>(f, q, keys, n, signs, sums);
  if (count == 2) return code_sums_of<Bits, OneWeight, 2>(f, q, keys, n, signs, sums);
  const std::int64_t chunks = (f.dim + code_chunk - 1) / code_chunk;
  for (int g = 0; g < count; g += 4, q += 4 * code_chunk * chunks, sums += 4 * code_block)
    code_sums_of<Bits, OneWeight, 4>(f, q, keys, n, signs, sums);
}

template <int Bits>
inline void code_sums(const code_format& f, const std::int8_t* q, int count, const code_address* keys, int n, const code_address* next,
                      int next_n, float* sums) {
  std::uint64_t signs[code_block * most_chunks];                                                    // (n, chunks)
  gather_signs(f, keys, n, next, next_n, signs);
  if (f.subspace == 0) return code_sums_by_four<Bits, true>(f, q, count, keys, n, signs, sums);
  code_sums_by_four<Bits, false>(f, q, count, keys, n, signs, sums);
}

inline void logits(float unit, const float* sums, const float* terms, int n, float* out) {
  constexpr int step = double_lanes::width;
  const double_lanes::d u = double_lanes::set(static_cast<double>(unit));
  int t = 0;
  for (; t + step <= n; t += step)
    double_lanes::narrow(double_lanes::multiply_add(u, double_lanes::one_vector(sums + t), double_lanes::one_vector(terms + t)), out + t);
  for (; t < n; ++t) out[t] = static_cast<float>(static_cast<double>(unit) * static_cast<double>(sums[t]) + static_cast<double>(terms[t]));
}

inline float largest(const float* x, std::int64_t n) {
  lanes::f most = lanes::set(-__builtin_inff());
  std::int64_t t = 0;
  for (; t + lanes::width <= n; t += lanes::width) most = lanes::max(lanes::load(x + t), most);  // NaN on the left gives `most`
  float result = lanes::largest(most);
  for (; t < n; ++t) result = x[t] > result ? x[t] : result;
  return result;
}

/// quick_exp of every lane.
[[gnu::always_inline]] inline lanes::f quick_exp_of(lanes::f x) {
  using c = quick_exp_numbers;
  const lanes::f z = lanes::max(x, lanes::set(c::lowest));                                          // `lowest` for NaN
  const lanes::f n = lanes::round(encode_lanes::rounded(lanes::mul(z, lanes::set(c::log2_e))));
  const lanes::f high = lanes::sub(z, lanes::mul(n, lanes::set(c::ln2_high)));                      // of a product that is exact
  const lanes::f r = lanes::sub(high, encode_lanes::rounded(lanes::mul(n, lanes::set(c::ln2_low))));
  lanes::f p = lanes::set(c::series[0]);
#pragma GCC unroll 8
  for (int i = 1; i < 7; ++i) p = lanes::add(encode_lanes::rounded(lanes::mul(p, r)), lanes::set(c::series[i]));
  const lanes::f power = lanes::select(lanes::less(x, lanes::set(c::lowest)), lanes::set(0), lanes::scale(p, n));
  return lanes::select(lanes::less(x, lanes::set(1)), power, x);                                    // NaN stays
}

inline std::int64_t exponentials(const float* x, std::int64_t n, float max, float* e) {
  const lanes::f against = lanes::set(max < -3.402823466e+38f ? 0 : max);
  typename double_lanes::count sum = double_lanes::none();
  const auto count = [&](const float* p) {
#pragma GCC unroll 4
    for (int j = 0; j < lanes::width; j += double_lanes::width) sum = double_lanes::add_fixed_point(double_lanes::one_vector(p + j), sum);
  };
  std::int64_t t = 0;
  for (; t + lanes::width <= n; t += lanes::width) {
    lanes::store(e + t, quick_exp_of(lanes::sub(lanes::load(x + t), against)));
    count(e + t);
  }
  if (t < n) {
    float rest[lanes::width];
    for (int j = 0; j < lanes::width; ++j) rest[j] = t + j < n ? x[t + j] : -__builtin_inff();
    lanes::store(rest, quick_exp_of(lanes::sub(lanes::load(rest), against)));
    count(rest);
    for (int j = 0; t + j < n; ++j) e[t + j] = rest[j];
  }
  return double_lanes::whole(sum);
}

inline void mix(const float* e, std::int64_t pitch, int count, const float* factors, std::int64_t n, float* scores) {
  std::int64_t t = 0;
  for (; t + lanes::width <= n; t += lanes::width) {
    lanes::f sum = lanes::set(0);
    for (int g = 0; g < count; ++g)
      sum = lanes::add(sum, encode_lanes::rounded(lanes::mul(lanes::load(e + g * pitch + t), lanes::set(factors[g]))));
    lanes::store(scores + t, sum);
  }
  for (; t < n; ++t) {
    float sum = 0;
    for (int g = 0; g < count; ++g) sum += rounded_product(e[g * pitch + t], factors[g]);
    scores[t] = sum;
  }
}

inline std::int64_t count_at_least(const float* x, std::int64_t n, float level) {
  std::int64_t count = 0, t = 0;
  for (; t + lanes::width <= n; t += lanes::width) count += __builtin_popcount(float_bits::at_least(x + t, lanes::set(level)));
  for (; t < n; ++t) count += x[t] >= level ? 1 : 0;
  return count;
}

inline std::int64_t take_at_least(const float* x, std::int64_t n, float level, std::int32_t first, std::int32_t* out) {
  std::int32_t* end = out;
  std::int64_t t = 0;
  for (; t + lanes::width <= n; t += lanes::width) {
    const std::uint32_t bits = float_bits::at_least(x + t, lanes::set(level));
    if (bits != 0) end = float_bits::write(bits, first + static_cast<std::int32_t>(t), end);
  }
  for (; t < n; ++t) {
    if (x[t] >= level) *end++ = first + static_cast<std::int32_t>(t);
  }
  return end - out;
}

inline constexpr rerank_table rerank_functions = {lanes::set_name, logits, largest, exponentials, mix, count_at_least, take_at_least};
