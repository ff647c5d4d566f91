#pragma once
// A Llama-family model of random weights, small enough to run by the definition.

#include "gguf_writer.hpp"

#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace decode_loop::test {

/// What varies between the tiny models. E 48, Q 2, H 1, D 64, F 40, two layers, 300 tokens.
struct tiny_form {
  bool half_split = false;                                              // "qwen2": half-split pairs and biases, else "llama"
  bool tied = true;
};

/// The printable spellings of all bytes, six merged tokens, and filler up to 300.
inline std::vector<std::string> tiny_vocabulary() {
  std::vector<std::string> tokens;
  int moved = 256;                                                      // where the next unprintable byte is spelled
  for (int byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const int code = prints ? byte : moved++;
    tokens.push_back(code < 128 ? std::string(1, static_cast<char>(code))
                                : std::string{static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 63))});
  }
  for (const char* merged : {"he", "\u0120t", "\u0120the", "th", "aa", "ahe"}) tokens.push_back(merged);
  while (tokens.size() < 300) tokens.push_back("<|" + std::to_string(tokens.size()) + "|>");
  return tokens;
}

inline gguf_writer tiny_metadata(const tiny_form& form) {
  const std::string family = form.half_split ? "qwen2" : "llama";
  gguf_writer file;
  file.text("general.architecture", family)
      .integer(family + ".block_count", 2)
      .integer(family + ".embedding_length", 48)
      .integer(family + ".feed_forward_length", 40)
      .integer(family + ".attention.head_count", 2)
      .integer(family + ".attention.head_count_kv", 1)
      .integer(family + ".attention.key_length", 64)
      .integer(family + ".context_length", 512)
      .real(family + ".rope.freq_base", 500)
      .real(family + ".attention.layer_norm_rms_epsilon", 1e-5F)
      .text("tokenizer.ggml.model", "gpt2")
      .text("tokenizer.ggml.pre", "smollm")
      .texts("tokenizer.ggml.tokens", tiny_vocabulary())
      .texts("tokenizer.ggml.merges", {"h e", "\u0120 t", "\u0120t he", "t h", "a a", "a he"})
      .integer("tokenizer.ggml.eos_token_id", 299);
  return file;
}

inline std::vector<std::byte> tiny_model(const tiny_form& form = {}, unsigned seed = 1) {
  gguf_writer file = tiny_metadata(form);
  std::mt19937 random(seed);
  const auto fill = [&](std::size_t count, float mean, float spread) {
    std::normal_distribution<float> normal(mean, spread);
    std::vector<float> values(count);
    for (float& x : values) x = normal(random);
    return values;
  };
  const auto matrix = [&](const std::string& name, std::uint64_t in, std::uint64_t out) {
    file.floats(name, {in, out}, fill(in * out, 0, 1.5F / std::sqrt(static_cast<float>(in))));
  };
  matrix("token_embd.weight", 48, 300);
  for (int layer = 0; layer < 2; ++layer) {
    const std::string block = "blk." + std::to_string(layer) + ".";
    for (const char* norm : {"attn_norm.weight", "ffn_norm.weight"}) file.floats(block + norm, {48}, fill(48, 1, 0.2F));
    matrix(block + "attn_q.weight", 48, 128);
    matrix(block + "attn_k.weight", 48, 64);
    matrix(block + "attn_v.weight", 48, 64);
    matrix(block + "attn_output.weight", 128, 48);
    matrix(block + "ffn_gate.weight", 48, 40);
    matrix(block + "ffn_up.weight", 48, 40);
    matrix(block + "ffn_down.weight", 40, 48);
    if (form.half_split) {
      file.floats(block + "attn_q.bias", {128}, fill(128, 0, 0.5F));
      file.floats(block + "attn_k.bias", {64}, fill(64, 0, 0.5F));
      file.floats(block + "attn_v.bias", {64}, fill(64, 0, 0.5F));
    }
  }
  file.floats("output_norm.weight", {48}, fill(48, 1, 0.2F));
  if (!form.tied) matrix("output.weight", 48, 300);
  return file.finish();
}

}  // namespace decode_loop::test
