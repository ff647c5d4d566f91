#include "pretokenizer.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <cstddef>

namespace decode_loop {
namespace {

enum class kind { letter, number, space, other };

struct character {
  kind is = kind::other;
  std::size_t bytes = 1;
};

bool is_space(utf8proc_int32_t code) {
  return (code >= 0x09 && code <= 0x0d) || code == 0x20 || code == 0x85 || code == 0xa0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

character read_character(std::string_view text, std::size_t at) {
  utf8proc_int32_t code = 0;
  const auto left = static_cast<utf8proc_ssize_t>(std::min<std::size_t>(text.size() - at, 4));
  const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at), left, &code);
  if (length <= 0) return {};
  const auto bytes = static_cast<std::size_t>(length);
  if (is_space(code)) return {kind::space, bytes};
  const auto category = utf8proc_category(code);
  if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) return {kind::letter, bytes};
  if (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO) return {kind::number, bytes};
  return {kind::other, bytes};
}

/// End of the run of characters of one kind that starts at `at`.
std::size_t run_end(std::string_view text, std::size_t at, kind of) {
  while (at < text.size()) {
    const character next = read_character(text, at);
    if (next.is != of) break;
    at += next.bytes;
  }
  return at;
}

/// Bytes of an English contraction at the front of `text`, or 0.
std::size_t contraction(std::string_view text) {
  for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (text.starts_with(ending)) return ending.size();
  }
  return 0;
}

/// Bytes of the first piece of `text`, which is not empty.
std::size_t first_piece(std::string_view text) {
  if (const auto length = contraction(text); length != 0) return length;
  const character first = read_character(text, 0);
  if (first.is != kind::space) return run_end(text, 0, first.is);

  if (text[0] == ' ' && text.size() > 1) {                              // one blank belongs to what follows it
    const character second = read_character(text, 1);
    if (second.is != kind::space) return run_end(text, 1, second.is);
  }
  std::size_t last = 0;                                                 // start of the run's last character
  std::size_t end = first.bytes;
  while (end < text.size()) {
    const character next = read_character(text, end);
    if (next.is != kind::space) return last == 0 ? end : last;          // \s+(?!\S) leaves one, \s+ takes a lone one
    last = end;
    end += next.bytes;
  }
  return end;
}

void append_pieces(std::string_view text, std::vector<std::string_view>& pieces) {
  while (!text.empty()) {
    pieces.push_back(text.substr(0, first_piece(text)));
    text.remove_prefix(pieces.back().size());
  }
}

}  // namespace

std::vector<std::string_view> pretokenize(std::string_view text, digits rule) {
  std::vector<std::string_view> pieces;
  if (rule == digits::in_runs) {
    append_pieces(text, pieces);
    return pieces;
  }
  std::size_t start = 0;                                                // of the text since the last number
  for (std::size_t at = 0; at < text.size();) {
    const character next = read_character(text, at);
    if (next.is == kind::number) {
      append_pieces(text.substr(start, at - start), pieces);
      pieces.push_back(text.substr(at, next.bytes));
      start = at + next.bytes;
    }
    at += next.bytes;
  }
  append_pieces(text.substr(start), pieces);
  return pieces;
}

}  // namespace decode_loop
