// The kernel of rans_table.hpp, once per instruction set: included by dispatch.hpp under the rules of kernels.hpp. What a set must bring
// is the struct rans_vectors: the states of 32 lanes.

/// Bytes that a step of 32 lanes takes in at most: a word a lane for its symbol, and one for its raw bits.
inline constexpr int most_step_bytes = 2 * 2 * rans_lanes;

/// The next bytes of a stream. Near its end they move into a buffer that zeros follow: vectors may then read beyond what is there, and a
/// stream that takes in more than it holds is noticed before the buffer ends.
struct word_reader {
  const std::uint8_t* next;
  const std::uint8_t* end;
  bool copied = false;
  std::uint8_t tail[3 * most_step_bytes];

  [[gnu::always_inline]] inline bool before_step() {
    if (end - next >= most_step_bytes) [[likely]]
      return true;
    if (copied) return next <= end;
    const auto left = static_cast<unsigned long>(end - next);
    __builtin_memset(tail, 0, sizeof tail);
    if (left > 0) __builtin_memcpy(tail, next, left);
    next = tail;
    end = tail + left;
    copied = true;
    return true;
  }
};

/// Replaces the values of lanes that escaped; false where the bytes end or tell a value beyond 16 bits. A byte holds the distance of the
/// symbol from the middle, its sign in the lowest bit; 255 is followed by two bytes.
[[gnu::noinline]] inline bool take_escapes(std::uint32_t lanes_of, const symbol_lookup& table, const std::uint8_t*& next,
                                           const std::uint8_t* end, std::int16_t* out) {
  for (; lanes_of != 0; lanes_of &= lanes_of - 1) {
    const int lane = __builtin_ctz(lanes_of);
    if (next == end) return false;
    std::int32_t code = *next++;
    if (code == 255) {
      if (end - next < 2) return false;
      code = next[0] | next[1] << 8;
      next += 2;
    }
    const std::int32_t symbol = middle_symbol + ((code & 1) != 0 ? -(code / 2) - 1 : code / 2);
    const std::int64_t value = out[lane] + (std::int64_t{symbol} - table.escape) * (std::int64_t{1} << table.raw_bits);
    if (value > 32767 || value < -32767) return false;
    out[lane] = static_cast<std::int16_t>(value);
  }
  return true;
}

/// One step of one component: up to 32 tokens.
template <bool Masked>
[[gnu::always_inline]] inline bool rans_step(const symbol_lookup& table, const typename rans_vectors::entries& entries, int active,
                                             rans_vectors& x, word_reader& words, const rans_job& job, const std::uint8_t*& escapes,
                                             std::int16_t* out) {
  if (!words.before_step()) return false;
  const typename rans_vectors::symbols s = x.template take_symbols<Masked>(entries, active, words.next);
  if (table.raw_bits == 0) {
    s.store(entries, out);
  } else {
    x.template take_raw_bits<Masked>(entries, table.raw_bits, active, words.next, s, out);
  }
  std::uint32_t escaped = s.equal_to(entries);
  if constexpr (Masked) escaped &= (1u << active) - 1;
  return escaped == 0 || take_escapes(escaped, table, escapes, job.escapes_end, out);
}

inline bool rans_decode(const rans_job& job) {
  rans_vectors x = rans_vectors::load(job.states);
  word_reader words{job.words, job.words_end, false, {}};
  const std::uint8_t* escapes = job.escapes;
  const std::int32_t whole = job.tokens / rans_lanes * rans_lanes;
  for (std::int64_t c = 0; c < job.components; ++c) {
    const symbol_lookup& table = job.tables[job.table_of[c]];
    const typename rans_vectors::entries entries(table);
    std::int16_t* const out = job.out + c * job.pitch;
    for (std::int32_t t = 0; t < whole; t += rans_lanes) {
      if (!rans_step<false>(table, entries, rans_lanes, x, words, job, escapes, out + t)) return false;
    }
    if (whole < job.tokens && !rans_step<true>(table, entries, job.tokens - whole, x, words, job, escapes, out + whole)) return false;
  }
  x.store(job.states);
  return words.next == words.end && escapes == job.escapes_end;
}
