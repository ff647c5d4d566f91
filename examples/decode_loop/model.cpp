#include "model.hpp"

#include "byte_reader.hpp"

#include <cmath>

namespace decode_loop {
namespace {

constexpr std::int64_t most_layers = 1024;
constexpr std::int64_t widest = 1 << 20;                                // embedding, feed-forward
constexpr std::int64_t most_heads = 1024;
constexpr std::int64_t most_tokens = 1 << 24;                           // vocabulary and context

model_shape read_shape(const gguf& file) {
  const std::string family = file.text("general.architecture");
  if (family != "llama" && family != "qwen2") {
    file.fail("general.architecture", "'" + byte_reader::printable(family) + "', read are 'llama' and 'qwen2'");
  }
  const auto count = [&](const char* key, std::int64_t highest) {
    return static_cast<std::size_t>(file.integer(family + "." + key, 1, highest));
  };
  model_shape shape;
  shape.layers = count("block_count", most_layers);
  shape.embedding = count("embedding_length", widest);
  shape.feed_forward = count("feed_forward_length", widest);
  shape.query_heads = count("attention.head_count", most_heads);
  shape.kv_heads = file.has(family + ".attention.head_count_kv") ? count("attention.head_count_kv", most_heads) : shape.query_heads;
  shape.context = count("context_length", most_tokens);
  shape.pairs = family == "llama" ? rope_pairs::interleaved : rope_pairs::half_split;

  if (shape.query_heads % shape.kv_heads != 0) file.fail(family + ".attention.head_count_kv", "does not divide the number of query heads");
  shape.head_dim = shape.embedding / shape.query_heads;
  if (file.has(family + ".attention.key_length")) shape.head_dim = count("attention.key_length", widest);
  if (file.has(family + ".attention.value_length") && count("attention.value_length", widest) != shape.head_dim) {
    file.fail(family + ".attention.value_length", "keys and values of different length are not read");
  }
  if (shape.head_dim == 0 || shape.head_dim % 2 != 0) file.fail(family + ".attention.head_count", "heads of odd or no dimension");
  if (file.has(family + ".rope.dimension_count") && count("rope.dimension_count", widest) != shape.head_dim) {
    file.fail(family + ".rope.dimension_count", "differs from the head dimension " + std::to_string(shape.head_dim));
  }

  if (file.has(family + ".rope.freq_base")) shape.rope_base = file.number(family + ".rope.freq_base");
  if (!(shape.rope_base >= 1 && std::isfinite(shape.rope_base))) file.fail(family + ".rope.freq_base", "must be finite and at least 1");
  shape.epsilon = static_cast<float>(file.number(family + ".attention.layer_norm_rms_epsilon"));
  if (!(shape.epsilon >= 0 && shape.epsilon < 1)) file.fail(family + ".attention.layer_norm_rms_epsilon", "must be in [0, 1)");
  if (file.has(family + ".rope.scaling.type") && file.text(family + ".rope.scaling.type") != "none") {
    file.fail(family + ".rope.scaling.type", "scaled RoPE is not read");
  }
  if (file.tensor("rope_freqs.weight") != nullptr) file.fail("rope_freqs.weight", "scaled RoPE is not read");

  const gguf_tensor* embedding = file.tensor("token_embd.weight");
  if (embedding == nullptr) file.fail("token_embd.weight", "the tensor is missing");
  if (embedding->dims[1] > static_cast<std::uint64_t>(most_tokens)) file.fail("token_embd.weight", "more than 2^24 rows");
  shape.vocabulary = embedding->dims[1];
  return shape;
}

model_layer read_layer(const gguf& file, const model_shape& shape, std::size_t index) {
  const std::string prefix = "blk." + std::to_string(index) + ".";
  const auto matrix = [&](const char* name, std::size_t in, std::size_t out) { return file.floats(prefix + name, {in, out}); };
  const auto bias = [&](const char* name, std::size_t out) {
    return file.tensor(prefix + name) == nullptr ? std::vector<float>() : file.floats(prefix + name, {out, 1});
  };
  const std::size_t queries = shape.query_heads * shape.head_dim;
  const std::size_t keys = shape.kv_heads * shape.head_dim;
  if (file.tensor(prefix + "attn_output.bias") != nullptr) file.fail(prefix + "attn_output.bias", "biases of the output are not read");
  return {
      .attention_norm = matrix("attn_norm.weight", shape.embedding, 1),
      .query = matrix("attn_q.weight", shape.embedding, queries),
      .key = matrix("attn_k.weight", shape.embedding, keys),
      .value = matrix("attn_v.weight", shape.embedding, keys),
      .query_bias = bias("attn_q.bias", queries),
      .key_bias = bias("attn_k.bias", keys),
      .value_bias = bias("attn_v.bias", keys),
      .output = matrix("attn_output.weight", queries, shape.embedding),
      .feed_norm = matrix("ffn_norm.weight", shape.embedding, 1),
      .gate = matrix("ffn_gate.weight", shape.embedding, shape.feed_forward),
      .up = matrix("ffn_up.weight", shape.embedding, shape.feed_forward),
      .down = matrix("ffn_down.weight", shape.feed_forward, shape.embedding),
  };
}

}  // namespace

double model_shape::product_operations() const {
  const double queries = static_cast<double>(query_heads * head_dim);
  const double keys = static_cast<double>(kv_heads * head_dim);
  const double weights = static_cast<double>(embedding) * (2 * queries + 2 * keys + 3 * static_cast<double>(feed_forward));
  return 2 * weights * static_cast<double>(layers);
}

model::model(const gguf& file) : shape(read_shape(file)) {
  embedding = file.floats("token_embd.weight", {shape.embedding, shape.vocabulary});
  for (std::size_t index = 0; index < shape.layers; ++index) layers.push_back(read_layer(file, shape, index));
  output_norm = file.floats("output_norm.weight", {shape.embedding, 1});
  if (file.tensor("output.weight") != nullptr) own_output = file.floats("output.weight", {shape.embedding, shape.vocabulary});
}

}  // namespace decode_loop
