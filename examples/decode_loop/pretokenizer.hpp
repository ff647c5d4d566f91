#pragma once
// Cuts text into the pieces that byte-pair merges never cross: GPT-2's pattern, with or without every digit on its own.

#include <string_view>
#include <vector>

namespace decode_loop {

enum class digits { in_runs, each_alone };

/// The pieces of a text, in order; together they are the text.
///
/// what        's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
///             With digits::each_alone every \p{N} is a piece, and the pattern sees the text between two of them alone.
/// exactness   \p{L} and \p{N} are utf8proc's, \s is Unicode's White_Space; a byte that is no UTF-8 counts as [^\s\p{L}\p{N}]
/// cost        linear
/// source      Radford et al. 2019, encoder.py; the digits are those of the "smollm" tokenizer of llama.cpp
std::vector<std::string_view> pretokenize(std::string_view text, digits rule);

}  // namespace decode_loop
