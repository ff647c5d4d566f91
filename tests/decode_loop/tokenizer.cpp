// Pieces and merges as the `tokenizers` package gives them (recorded there), and text that comes back whole.

#include "gguf_writer.hpp"
#include "tiny_model.hpp"

#include <tokenizer.hpp>

#include <doctest/doctest.h>

#include <algorithm>

using namespace decode_loop;
using pieces = std::vector<std::string_view>;

TEST_CASE("pieces of GPT-2's pattern, digits alone") {
  const auto cut = [](std::string_view text) { return pretokenize(text, digits::each_alone); };
  CHECK(cut("It's 1,024 tokens  (and we'll\n\n see)\tx") ==
        pieces{"It", "'s", " ", "1", ",", "0", "2", "4", " tokens", " ", " (", "and", " we", "'ll", "\n\n", " see", ")", "\t", "x"});
  CHECK(cut("  a\u00a0\u3000b\u2028 c1½ ٣d") == pieces{" ", " a", "\u00a0", "\u3000", "b", "\u2028", " c", "1", "½", " ", "٣", "d"});
  CHECK(cut("naïve 漢字—'S 'd's 12") == pieces{"naïve", " 漢字", "—'", "S", " '", "d", "'s", " ", "1", "2"});
  CHECK(cut(" \n  x  ") == pieces{" \n ", " x", "  "});
  CHECK(cut("").empty());
}

TEST_CASE("pieces of GPT-2's pattern, digits in runs") {
  const auto cut = [](std::string_view text) { return pretokenize(text, digits::in_runs); };
  CHECK(cut("It's 1,024 x") == pieces{"It", "'s", " 1", ",", "024", " x"});
  CHECK(cut("  a\u00a0\u3000b\u2028 c1½ ٣d") == pieces{" ", " a", "\u00a0", "\u3000", "b", "\u2028", " c", "1½", " ٣", "d"});
}

TEST_CASE("bytes that are no UTF-8 are pieces too") {
  const std::string_view broken = "a\xff\xc3 \xe6\xbc b\xf0\x9f\x98";
  for (const auto rule : {digits::each_alone, digits::in_runs}) {
    std::string joined;
    for (const auto piece : pretokenize(broken, rule)) joined += piece;
    CHECK(joined == broken);
  }
}

TEST_CASE("merges: best rank first, leftmost of equals") {
  const gguf file(test::tiny_metadata({}).finish(), "test.gguf");
  const tokenizer words(file);
  const auto id = [](std::string_view token) {
    const auto all = test::tiny_vocabulary();
    return static_cast<token_id>(std::find(all.begin(), all.end(), token) - all.begin());
  };
  CHECK(words.encode(" the") == std::vector<token_id>{id("\u0120the")});
  CHECK(words.encode("the") == std::vector<token_id>{id("t"), id("he")});  // "h e" outranks "t h"
  CHECK(words.encode("th") == std::vector<token_id>{id("th")});
  CHECK(words.encode("ahe") == std::vector<token_id>{id("ahe")});      // the pair to the left of a merge is looked at again
  CHECK(words.encode("aaa") == std::vector<token_id>{id("aa"), id("a")});
  CHECK(words.encode("aaaa") == std::vector<token_id>{id("aa"), id("aa")});
  CHECK(words.encode("").empty());
  CHECK(words.end_of_text() == 299);
}

TEST_CASE("any bytes come back from their tokens") {
  const gguf file(test::tiny_metadata({}).finish(), "test.gguf");
  const tokenizer words(file);
  std::string all;
  for (int round = 0; round < 4; ++round) {
    for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte * (2 * round + 1));
  }
  CHECK(words.decode(words.encode(all)) == all);
  CHECK(words.decode(token_id{299}) == "<|299|>");
  CHECK(words.decode(token_id{-1}).empty());
  CHECK(words.decode(token_id{300}).empty());
}

TEST_CASE("a long run of one character takes no quadratic time") {
  const gguf file(test::tiny_metadata({}).finish(), "test.gguf");
  CHECK(tokenizer(file).encode(std::string(400000, 'a')).size() == 200000);
}

TEST_CASE("tokenizers of another kind are refused") {
  const auto refuse = [](std::string_view model, std::string_view pattern, const std::vector<std::string>& merges) {
    test::gguf_writer out;
    out.text("tokenizer.ggml.model", model).text("tokenizer.ggml.pre", pattern).texts("tokenizer.ggml.tokens", {"a", "b", "ab"});
    out.texts("tokenizer.ggml.merges", merges);
    const gguf file(out.finish(), "t");
    try {
      const tokenizer words(file);
    } catch (const file_error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK(refuse("gpt2", "gpt-2", {"a b"}) == "accepted");
  CHECK(refuse("llama", "gpt-2", {}) == "t: tokenizer.ggml.model: 'llama', read is byte-level BPE ('gpt2')");
  CHECK(refuse("gpt2", "qwen2", {}) == "t: tokenizer.ggml.pre: 'qwen2', known are 'smollm' and 'gpt-2'");
  CHECK(refuse("gpt2", "gpt-2", {"a b", "a c"}) == "t: tokenizer.ggml.merges: merge 1 is not of two tokens of the vocabulary");
  CHECK(refuse("gpt2", "gpt-2", {"ab"}) == "t: tokenizer.ggml.merges: merge 0 is not of two tokens of the vocabulary");
  CHECK(refuse("gpt2", "gpt-2", {"b a"}) == "t: tokenizer.ggml.merges: merge 0 gives no token of the vocabulary");
}
