// The kernel of value_table.hpp, once per instruction set that has a form of its own for it: included by dispatch.hpp under the rules of
// kernels.hpp. What a set must bring is the struct value_lanes: chunks of 32 bytes, quads of four tokens.

/// A head's weights in whole numbers, -127..127, and what one of them is worth.   w (32), whole (32)
inline float whole_weights(const float* w, std::int8_t* whole) {
  float spoilt;  // 0, or NaN where a weight is not finite: it keeps the unit and spoils the sums, as it must
  const float largest = value_lanes::largest(w, spoilt);
  value_lanes::scale(w, largest > 0x1p-100f ? 127 / largest : 0, whole);  // below it the inverse overflows, and all of it is nothing
  return largest / 127 + spoilt;
}

/// Asks for the code of a token that is added later.
[[gnu::always_inline]] inline void prefetch_value(const std::uint8_t* code, std::int64_t bytes) {
  for (std::int64_t y = 0; y < bytes; y += 64) __builtin_prefetch(code + y);
  if ((reinterpret_cast<std::uintptr_t>(code) & 63) + static_cast<std::uintptr_t>(bytes) > 64) __builtin_prefetch(code + bytes - 1);
}

/// Levels of up to 32 tokens, four tokens beside each other.   levels (fields, 4, quads, 32 bytes)
template <int Bits>
[[gnu::always_inline]] inline void spread_values(const value_lanes::table& table, const std::uint8_t* const* codes, int n,
                                                 const std::uint8_t* const* next, int next_n, std::int64_t row, int at, int bytes,
                                                 value_lanes::bytes* levels) {
  constexpr int fields = 8 / Bits, quads = value_block / 4;
  const int used = (n + 3) / 4;
  for (int u = 0; u < used; ++u) {
    for (int t = 4 * u; t < 4 * u + 4 && t < next_n; ++t) prefetch_value(next[t], row);  // a few at a time: buffers are few
    value_lanes::bytes x[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) x[j] = value_lanes::load(codes[4 * u + j < n ? 4 * u + j : n - 1] + at, bytes);  // of weight 0 beyond n
#pragma GCC unroll 4
    for (int f = 0; f < fields; ++f) {
      value_lanes::bytes v[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) v[j] = table.look_up(value_lanes::field<Bits>(x[j], f));
      value_lanes::beside(v);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) levels[(f * 4 + j) * quads + u] = v[j];
    }
  }
}

/// Sums of Q heads over the spread levels of one chunk.
template <int Bits, int Q>
inline void add_values(const value_lanes::bytes* levels, int used, const value_lanes::quad_weights* weights, const float* units,
                       float* sums, std::int64_t pitch) {
  constexpr int vectors = 8 / Bits * 4, quads = value_block / 4;
  for (int v = 0; v < vectors; v += 2) {
    value_lanes::ints a[Q], b[Q];
#pragma GCC unroll 4
    for (int g = 0; g < Q; ++g) a[g] = b[g] = weights[g].start();
    for (int u = 0; u < used; ++u) {
      const value_lanes::bytes x = levels[v * quads + u], y = levels[(v + 1) * quads + u];
#pragma GCC unroll 4
      for (int g = 0; g < Q; ++g) {
        a[g] = weights[g].add(a[g], x, u);
        b[g] = weights[g].add(b[g], y, u);
      }
    }
#pragma GCC unroll 4
    for (int g = 0; g < Q; ++g) {
      value_lanes::accumulate(a[g], units[g], sums + g * pitch + v * 8);
      value_lanes::accumulate(b[g], units[g], sums + g * pitch + v * 8 + 8);
    }
  }
}

template <int Bits>
inline void value_sums(const value_format& f, const std::uint8_t* const* codes, int n, const std::uint8_t* const* next, int next_n,
                       const float* weights, int count, float* sums, std::int64_t pitch) {
  constexpr int vectors = 8 / Bits * 4, quads = value_block / 4;
  if (n <= 0) return;
  value_lanes::quad_weights whole[most_value_heads];
  float units[most_value_heads];
  for (int g = 0; g < count; ++g) {
    alignas(32) std::int8_t w[value_block];
    units[g] = whole_weights(weights + g * value_block, w);
    whole[g].set(w);
  }
  const value_lanes::table table(f.levels);
  value_lanes::bytes levels[vectors * quads];
  for (int c = 0; c < f.chunks(); ++c) {
    const int at = c * value_chunk, left = static_cast<int>(f.row_bytes) - at;
    spread_values<Bits>(table, codes, n, next, c == 0 ? next_n : 0, f.row_bytes, at, left < value_chunk ? left : value_chunk, levels);
    float* const out = sums + std::int64_t{c} * vectors * 8;
    int g = 0;
    for (; g + 4 <= count; g += 4) add_values<Bits, 4>(levels, (n + 3) / 4, whole + g, units + g, out + g * pitch, pitch);
    if (count - g >= 2) {
      add_values<Bits, 2>(levels, (n + 3) / 4, whole + g, units + g, out + g * pitch, pitch);
      g += 2;
    }
    if (g < count) add_values<Bits, 1>(levels, (n + 3) / 4, whole + g, units + g, out + g * pitch, pitch);
  }
}
