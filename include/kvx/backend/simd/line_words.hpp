// What page_kernels.hpp adds up with where products of bytes are words: included by dispatch.hpp before it.

/// Lines whose products fit signed words: four, of two half bytes of 15 and two products of 127 each.
inline constexpr int lines_in_words = 4;

/// Sums of one query over the lines of a vector's pages.
struct line_sums {
  bytes::i total;
  bytes::w part;
  [[gnu::always_inline]] inline void clear() {
    total = bytes::no_ints();
    part = bytes::set_words(0);
  }
  /// The halves of a line with the four bytes of each.
  [[gnu::always_inline]] inline void add(bytes::b low, bytes::b high, std::int32_t first, std::int32_t second) {
    const bytes::w x = bytes::products(low, bytes::set_quads(first)), y = bytes::products(high, bytes::set_quads(second));
    part = bytes::plus(part, bytes::plus(x, y));
  }
  /// After lines_in_words lines.
  [[gnu::always_inline]] inline void widen() {
    total = bytes::add_ints(total, bytes::pairs(part));
    part = bytes::set_words(0);
  }
  [[gnu::always_inline]] inline bytes::i whole() const { return bytes::add_ints(total, bytes::pairs(part)); }
};
