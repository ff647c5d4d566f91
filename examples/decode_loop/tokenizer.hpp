#pragma once
// The byte-level BPE tokenizer that a GGUF file carries.

#include "gguf.hpp"
#include "pretokenizer.hpp"

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace decode_loop {

using token_id = std::int32_t;

/// Text to tokens and back.
///
/// what        pieces of the pattern, each byte a token, then merges: the best-ranked pair first, the leftmost of equals
/// exactness   the ids of the `tokenizers` package on the same vocabulary. Special tokens are not recognised in text; a byte that the
///             vocabulary lacks is dropped, as there
/// cost        n log n in the length of a piece
/// errors      file_error for a tokenizer of another model or pattern, or a merge of tokens that do not exist
/// source      Sennrich et al. 2016; Radford et al. 2019 for the bytes
class tokenizer {
 public:
  explicit tokenizer(const gguf& file);

  std::vector<token_id> encode(std::string_view text) const;

  /// The bytes of a token: pieces of UTF-8 that join to the text. Empty for an id outside the vocabulary.
  std::string_view decode(token_id id) const;
  std::string decode(std::span<const token_id> ids) const;

  std::size_t size() const { return bytes_of_.size(); }
  token_id end_of_text() const { return end_of_text_; }                 // -1: the file names none

 private:
  struct merge {
    std::int32_t rank = 0;
    token_id into = 0;
  };
  static std::uint64_t pair(token_id left, token_id right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }
  void encode_piece(std::string_view piece, std::vector<token_id>& out) const;

  digits digits_ = digits::each_alone;
  std::vector<std::string> bytes_of_;                                   // by token id
  std::array<token_id, 256> byte_token_;                                // -1: the vocabulary lacks the byte
  std::unordered_map<std::uint64_t, merge> merges_;
  token_id end_of_text_ = -1;
};

}  // namespace decode_loop
