// The kernels of rerank_table that read codes, once per instruction set that has a form of its own for them: included by dispatch.hpp under
// the rules of kernels.hpp. What a set must bring is the struct code_lanes: chunks of 64 coordinates, 16 lanes of sums.

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

/// Asks for the magnitudes and weights of a key.
[[gnu::always_inline]] inline void prefetch_code(const code_format& f, const code_address& a) {
  __builtin_prefetch(a.magnitudes);
  __builtin_prefetch(a.magnitudes + f.magnitude_bytes - 1);
  for (std::int64_t j = 64; j < f.magnitude_bytes; j += 64) __builtin_prefetch(a.magnitudes + j);
  __builtin_prefetch(a.weights);
  __builtin_prefetch(a.weights + f.weights - 1);
  for (std::int64_t j = 32; j < f.weights; j += 32) __builtin_prefetch(a.weights + j);
}

/// Signs of keys, chunk after chunk, 0 beyond D: (n, chunks). While key t is read, the others' t-th is asked for.
inline void gather_signs(const code_format& f, const code_address* keys, int n, const code_address* next, int next_n,
                         std::uint64_t* signs) {
  const std::int64_t pitch = f.sign_pitch;
  const int plane = (f.dim + 7) / 8;
  for (int t = 0; t < n; ++t) {
    if (t < next_n) prefetch_code(f, next[t]);
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

/// What a chunk of a key adds to the sums of Q heads.   q (Q, 64), starts (Q), planes `plane` bytes apart
template <int Bits, int Q, bool Rest>
[[gnu::always_inline]] inline void add_chunk(const code_format& f, const code_lanes::table<Bits>& levels, const std::int8_t* q,
                                             const code_lanes::start* starts, int d, std::uint64_t signs, const std::uint8_t* magnitudes,
                                             std::int64_t plane, const half* weights, code_lanes::total* total) {
  std::uint64_t planes[Bits];
#pragma GCC unroll 8
  for (int p = 0; p < Bits; ++p) planes[p] = eight_bytes(magnitudes + p * plane);
  code_lanes::chunk v = code_lanes::levels_of(levels, planes);  // v (64)
  if (Rest && f.last < f.dim) v = code_lanes::join(v, code_lanes::levels_of(code_lanes::table<Bits>(f.last_levels), planes), f.last - d);
  const code_lanes::signed_chunk x(v, signs);  // x (64)
  if (f.subspace == 0) {
#pragma GCC unroll 4
    for (int g = 0; g < Q; ++g) total[g].add(code_lanes::quads(x, q + g * code_chunk, starts[g]));
  } else {
    const code_lanes::floats w = quad_weights(f.subspace, weights);  // w (16 quads)
#pragma GCC unroll 4
    for (int g = 0; g < Q; ++g) total[g].add(code_lanes::quads(x, q + g * code_chunk, starts[g]), w);
  }
}

template <int Bits, int Q>
inline void code_sums_of(const code_format& f, const std::int8_t* q, const code_address* keys, int n, const std::uint64_t* signs,
                         float* sums) {
  const code_lanes::table<Bits> levels(f.levels);
  const std::int64_t plane = (f.dim + 7) / 8, whole = f.last / code_chunk;
  const std::int64_t each = f.subspace == 0 ? 0 : code_chunk / f.subspace;
  code_lanes::start starts[Q * most_chunks];  // starts (chunks, Q)
  for (int i = 0; i < Q * f.chunks(); ++i) starts[i] = code_lanes::start_of(q + i * code_chunk);
  const int first = static_cast<int>(whole) * code_chunk;  // of a chunk that is laid out: it has an end, or levels of its own
  for (int t = 0; t < n; ++t) {
    code_lanes::total total[Q];  // total (Q, 16 lanes)
#pragma GCC unroll 4
    for (int g = 0; g < Q; ++g) total[g].clear();
    const std::uint8_t* magnitudes = keys[t].magnitudes;
    const half* weights = keys[t].weights;
    const std::int8_t* query = q;
    const code_lanes::start* start = starts;
    for (const std::uint8_t* const end = magnitudes + 8 * whole; magnitudes != end; magnitudes += 8) {
      add_chunk<Bits, Q, false>(f, levels, query, start, 0, *signs++, magnitudes, plane, weights, total);
      query += Q * code_chunk;
      start += Q;
      weights += each;
    }
    if (first < f.dim) {
      const code_rest<Bits> rest(f, keys[t], first);
      add_chunk<Bits, Q, true>(f, levels, query, start, first, *signs++, rest.magnitudes, 8, rest.weights, total);
    }
    float out[4], w = 1;
    if (f.subspace == 0) {
      code_lanes::reduce_whole<Q>(total, out);
      w = code_lanes::one(keys[t].weights);
    } else {
      code_lanes::reduce<Q>(total, out);
    }
#pragma GCC unroll 4
    for (int g = 0; g < Q; ++g) sums[g * code_block + t] = out[g] * w;
  }
}

template <int Bits>
inline void code_sums(const code_format& f, const std::int8_t* q, int count, const code_address* keys, int n, const code_address* next,
                      int next_n, float* sums) {
  std::uint64_t signs[code_block * most_chunks];  // (n, chunks)
  gather_signs(f, keys, n, next, next_n, signs);
  if (count == 1) return code_sums_of<Bits, 1>(f, q, keys, n, signs, sums);
  if (count == 2) return code_sums_of<Bits, 2>(f, q, keys, n, signs, sums);
  for (int g = 0; g < count; g += 4, q += 4 * code_chunk * f.chunks(), sums += 4 * code_block)
    code_sums_of<Bits, 4>(f, q, keys, n, signs, sums);
}
