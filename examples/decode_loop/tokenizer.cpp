#include "tokenizer.hpp"

#include "byte_reader.hpp"

#include <queue>

namespace decode_loop {
namespace {

/// The printable character, as UTF-8, by which GPT-2's vocabularies spell a byte.
std::string spelling(int byte) {
  const auto prints = [](int b) { return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff); };
  int code = byte;
  if (!prints(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += !prints(b);
  }
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

/// The bytes that a token of the vocabulary stands for; a character that spells no byte stands for itself.
std::string spelled_bytes(std::string_view token, const std::unordered_map<std::string, char>& byte_of) {
  std::string bytes;
  for (std::size_t at = 0; at < token.size();) {
    const auto lead = static_cast<unsigned char>(token[at]);
    const std::size_t length = std::min<std::size_t>(lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4, token.size() - at);
    const std::string character(token.substr(at, length));
    const auto found = byte_of.find(character);
    bytes += found == byte_of.end() ? character : std::string(1, found->second);
    at += length;
  }
  return bytes;
}

}  // namespace

tokenizer::tokenizer(const gguf& file) {
  if (const auto model = file.text("tokenizer.ggml.model"); model != "gpt2") {
    file.fail("tokenizer.ggml.model", "'" + byte_reader::printable(model) + "', read is byte-level BPE ('gpt2')");
  }
  const auto pattern = file.text("tokenizer.ggml.pre");
  if (pattern == "gpt-2") {
    digits_ = digits::in_runs;
  } else if (pattern != "smollm") {
    file.fail("tokenizer.ggml.pre", "'" + byte_reader::printable(pattern) + "', known are 'smollm' and 'gpt-2'");
  }

  const auto tokens = file.texts("tokenizer.ggml.tokens");
  std::unordered_map<std::string_view, token_id> id_of;
  std::unordered_map<std::string, char> byte_of;
  for (int b = 0; b < 256; ++b) byte_of.emplace(spelling(b), static_cast<char>(b));
  for (const auto token : tokens) {
    id_of.emplace(token, static_cast<token_id>(bytes_of_.size()));
    bytes_of_.push_back(spelled_bytes(token, byte_of));
  }
  for (int b = 0; b < 256; ++b) {
    const auto found = id_of.find(spelling(b));
    byte_token_[static_cast<std::size_t>(b)] = found == id_of.end() ? -1 : found->second;
  }

  std::int32_t rank = 0;
  for (const auto text : file.texts("tokenizer.ggml.merges")) {
    const auto blank = text.find(' ');
    const auto left = id_of.find(text.substr(0, blank));
    const auto right = blank == text.npos ? id_of.end() : id_of.find(text.substr(blank + 1));
    if (left == id_of.end() || right == id_of.end()) {
      file.fail("tokenizer.ggml.merges", "merge " + std::to_string(rank) + " is not of two tokens of the vocabulary");
    }
    const auto joined = id_of.find(std::string(left->first) + std::string(right->first));
    if (joined == id_of.end()) file.fail("tokenizer.ggml.merges", "merge " + std::to_string(rank) + " gives no token of the vocabulary");
    merges_.emplace(pair(left->second, right->second), merge{rank++, joined->second});
  }
  if (file.has("tokenizer.ggml.eos_token_id")) {
    end_of_text_ = static_cast<token_id>(file.integer("tokenizer.ggml.eos_token_id", 0, static_cast<std::int64_t>(tokens.size()) - 1));
  }
}

void tokenizer::encode_piece(std::string_view piece, std::vector<token_id>& out) const {
  struct symbol {
    token_id id;
    std::size_t before, after;                                          // places of the neighbours; npos at the ends
  };
  constexpr std::size_t npos = std::string_view::npos;
  std::vector<symbol> symbols;
  for (const char c : piece) {
    const token_id id = byte_token_[static_cast<unsigned char>(c)];
    if (id >= 0) symbols.push_back({id, symbols.size() - 1, symbols.size() + 1});
  }
  if (symbols.empty()) return;
  symbols.back().after = npos;

  struct candidate {
    std::int32_t rank;
    std::size_t left;
    token_id into;
    bool operator>(const candidate& other) const { return rank != other.rank ? rank > other.rank : left > other.left; }
  };
  std::priority_queue<candidate, std::vector<candidate>, std::greater<>> queue;
  const auto propose = [&](std::size_t left) {
    if (left == npos || symbols[left].after == npos) return;
    const auto found = merges_.find(pair(symbols[left].id, symbols[symbols[left].after].id));
    if (found != merges_.end()) queue.push({found->second.rank, left, found->second.into});
  };
  for (std::size_t i = 0; i < symbols.size(); ++i) propose(i);

  while (!queue.empty()) {
    const candidate best = queue.top();
    queue.pop();
    symbol& left = symbols[best.left];
    if (left.id < 0 || left.after == npos) continue;                    // merged away since it was proposed
    symbol& right = symbols[left.after];
    const auto found = merges_.find(pair(left.id, right.id));
    if (found == merges_.end() || found->second.into != best.into) continue;
    left.id = best.into;
    right.id = -1;
    left.after = right.after;
    if (left.after != npos) symbols[left.after].before = best.left;
    propose(left.before);
    propose(best.left);
  }
  for (std::size_t i = 0; i != npos; i = symbols[i].after) out.push_back(symbols[i].id);
}

std::vector<token_id> tokenizer::encode(std::string_view text) const {
  std::vector<token_id> ids;
  for (const auto piece : pretokenize(text, digits_)) encode_piece(piece, ids);
  return ids;
}

std::string_view tokenizer::decode(token_id id) const {
  return id >= 0 && static_cast<std::size_t>(id) < bytes_of_.size() ? std::string_view(bytes_of_[static_cast<std::size_t>(id)])
                                                                    : std::string_view();
}

std::string tokenizer::decode(std::span<const token_id> ids) const {
  std::string text;
  for (const token_id id : ids) text += decode(id);
  return text;
}

}  // namespace decode_loop
