// The kernels of rerank_table, once per instruction set: included by dispatch.hpp behind kernels.hpp, under the same rules. What a set
// must bring is the struct code_lanes: chunks of 64 coordinates, 16 lanes of sums.

/// Eight bytes, `pitch` apart; fewer for the last ones of a plane.
[[gnu::always_inline]] inline std::uint64_t bytes_apart(const std::uint8_t* p, std::int64_t pitch, int n) {
  std::uint64_t x = 0;
  if (n == 8) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) x |= std::uint64_t{p[j * pitch]} << 8 * j;
  } else {
    for (int j = 0; j < n; ++j) x |= std::uint64_t{p[j * pitch]} << 8 * j;
  }
  return x;
}

[[gnu::always_inline]] inline std::uint64_t bytes_of(const std::uint8_t* p, int n) {
  if (n < 8) return bytes_apart(p, 1, n);
  std::uint64_t x;
  __builtin_memcpy(&x, p, 8);
  return x;
}

/// The weights of the 16 quads of a chunk; 0 beyond the last subspace.
[[gnu::always_inline]] inline code_lanes::floats quad_weights(const code_format& f, const half* weights, int chunk) {
  const int each = code_chunk / f.subspace;
  const half* w = weights + chunk * each;
  half rest[code_chunk / 4] = {};
  if ((chunk + 1) * code_chunk > f.dim) {
    const int n = (f.dim - chunk * code_chunk + f.subspace - 1) / f.subspace;
    for (int j = 0; j < n; ++j) rest[j] = w[j];
    w = rest;
  }
  return f.subspace == 8 ? code_lanes::twice(w) : f.subspace == 4 ? code_lanes::once(w) : code_lanes::four_times(w);
}

template <int Bits, bool OneWeight, int Q>
inline void code_sums_of(const code_format& f, const std::int8_t* q, std::int64_t pitch, const code_address* keys, int n, float* sums) {
  const code_lanes::table<Bits> levels(f.levels);
  const int plane = (f.dim + 7) / 8;
  for (int t = 0; t < n; ++t) {
    const code_address key = keys[t];
    typename code_lanes::total<OneWeight> total[Q];                                                 // total (Q, 16 lanes)
#pragma GCC unroll 4
    for (int g = 0; g < Q; ++g) total[g].clear();
    for (int c = 0; c * code_chunk < f.dim; ++c) {
      const int bytes = plane - 8 * c < 8 ? plane - 8 * c : 8;
      std::uint64_t planes[Bits];
#pragma GCC unroll 8
      for (int p = 0; p < Bits; ++p) planes[p] = bytes_of(key.magnitudes + p * plane + 8 * c, bytes);
      code_lanes::chunk v = code_lanes::levels_of(levels, planes);                                  // v (64)
      if (f.last < (c + 1) * code_chunk && f.last < f.dim) {
        v = code_lanes::join(v, code_lanes::levels_of(code_lanes::table<Bits>(f.last_levels), planes), f.last - c * code_chunk);
      }
      const code_lanes::signs s(bytes_apart(key.signs + 8 * c * f.sign_pitch, f.sign_pitch, bytes));
      if constexpr (OneWeight) {
#pragma GCC unroll 4
        for (int g = 0; g < Q; ++g) total[g].add(code_lanes::quads(v, s, q + g * pitch + c * code_chunk));
      } else {
        const code_lanes::floats w = quad_weights(f, key.weights, c);                               // w (16 quads)
#pragma GCC unroll 4
        for (int g = 0; g < Q; ++g) total[g].add(code_lanes::quads(v, s, q + g * pitch + c * code_chunk), w);
      }
    }
    float out[4];
    code_lanes::reduce<OneWeight, Q>(total, out);
    const float w = OneWeight ? code_lanes::one(key.weights) : 1;
#pragma GCC unroll 4
    for (int g = 0; g < Q; ++g) sums[g * code_block + t] = OneWeight ? out[g] * w : out[g];
  }
}

template <int Bits, bool OneWeight>
inline void code_sums_by_four(const code_format& f, const std::int8_t* q, std::int64_t pitch, int count, const code_address* keys, int n,
                              float* sums) {
  if (count == 1) return code_sums_of<Bits, OneWeight, 1>(f, q, pitch, keys, n, sums);
  if (count == 2) return code_sums_of<Bits, OneWeight, 2>(f, q, pitch, keys, n, sums);
  for (int g = 0; g < count; g += 4) code_sums_of<Bits, OneWeight, 4>(f, q + g * pitch, pitch, keys, n, sums + g * code_block);
}

template <int Bits>
inline void code_sums(const code_format& f, const std::int8_t* q, std::int64_t pitch, int count, const code_address* keys, int n,
                      float* sums) {
  if (f.subspace == 0) return code_sums_by_four<Bits, true>(f, q, pitch, count, keys, n, sums);
  code_sums_by_four<Bits, false>(f, q, pitch, count, keys, n, sums);
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

inline std::int64_t exponentials(const float* x, std::int64_t n, float max, float* e) {
  constexpr int step = double_lanes::width;
  const float against = max < -3.402823466e+38f ? 0 : max;
  typename double_lanes::count sum = double_lanes::none();
  std::int64_t t = 0;
  for (; t + step <= n; t += step) sum = double_lanes::exponentials(x + t, against, e + t, sum);
  if (t < n) {
    float in[step], out[step];
    for (int j = 0; j < step; ++j) in[j] = t + j < n ? x[t + j] : -__builtin_inff();
    sum = double_lanes::exponentials(in, against, out, sum);
    for (int j = 0; t + j < n; ++j) e[t + j] = out[j];
  }
  return double_lanes::whole(sum);
}

inline void mix(const float* e, std::int64_t pitch, int count, const float* factors, std::int64_t n, float* scores) {
  constexpr int step = double_lanes::width;
  std::int64_t t = 0;
  for (; t + step <= n; t += step) {
    double_lanes::d sum = double_lanes::set(0);
    for (int g = 0; g < count; ++g) {
      sum =
          double_lanes::multiply_add(double_lanes::one_vector(e + g * pitch + t), double_lanes::set(static_cast<double>(factors[g])), sum);
    }
    double_lanes::narrow(sum, scores + t);
  }
  for (; t < n; ++t) {
    double sum = 0;
    for (int g = 0; g < count; ++g) sum += static_cast<double>(e[g * pitch + t]) * static_cast<double>(factors[g]);
    scores[t] = static_cast<float>(sum);
  }
}

inline constexpr rerank_table rerank_functions = {lanes::set_name, logits, largest, exponentials, mix};
