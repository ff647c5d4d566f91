// Decode steps of many caches in one pass say what one dense pass over the whole text says.

#include <compare.hpp>

#include <divergence.hpp>
#include <forward.hpp>

#include <doctest/doctest.h>

#include <random>
#include <vector>

namespace {

using decode_loop::token_id;

/// A small model of random weights, large enough to have opinions.
decode_loop::model random_model() {
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0, 1);
  const auto weights = [&](std::size_t rows, std::size_t in) {
    std::vector<float> w(rows * in);
    for (float& x : w) x = normal(random) / std::sqrt(static_cast<float>(in)) * 1.5F;
    return w;
  };
  decode_loop::model m;
  decode_loop::model_shape& s = m.shape;
  s.layers = 3;
  s.embedding = 128;
  s.feed_forward = 96;
  s.query_heads = 2;
  s.kv_heads = 1;
  s.head_dim = quality::head_dim;
  s.vocabulary = 50;
  m.embedding = weights(s.vocabulary, s.embedding);
  m.output_norm.assign(s.embedding, 4.0F);
  for (std::size_t l = 0; l < s.layers; ++l) {
    decode_loop::model_layer& layer = m.layers.emplace_back();
    layer.attention_norm.assign(s.embedding, 1.0F);
    layer.feed_norm.assign(s.embedding, 1.0F);
    layer.query = weights(s.query_heads * s.head_dim, s.embedding);
    layer.key = weights(s.kv_heads * s.head_dim, s.embedding);
    layer.value = weights(s.kv_heads * s.head_dim, s.embedding);
    layer.output = weights(s.embedding, s.query_heads * s.head_dim);
    layer.gate = weights(s.feed_forward, s.embedding);
    layer.up = weights(s.feed_forward, s.embedding);
    layer.down = weights(s.embedding, s.feed_forward);
  }
  return m;
}

std::vector<token_id> random_ids(std::size_t n) {
  std::mt19937 random(5);
  std::vector<token_id> ids(n);
  for (token_id& id : ids) id = static_cast<token_id>(random() % 50);
  return ids;
}

std::vector<const quality::method*> everything() {
  std::vector<const quality::method*> all;
  for (const quality::method& m : quality::all_methods()) all.push_back(&m);
  return all;
}

const kvx::host exec{.threads = 2};
const quality::progress_report quiet = [](const char*, std::size_t, std::size_t) {};
constexpr std::size_t prompt = 300, scored = 40;

}  // namespace

TEST_CASE("the reference's surprise is that of one pass over the whole text") {
  const auto model = random_model();
  const auto ids = random_ids(prompt + scored + 1);
  decode_loop::forward_pass pass(model, exec, 64);
  const auto got = quality::compare(pass, exec, everything(), ids, prompt, scored, quiet);

  decode_loop::forward_pass whole(model, exec, ids.size());
  const auto cache = quality::make_reference(exec, {.layers = 3, .kv_heads = 1, .query_heads = 2, .max_tokens = 400});
  const auto logits = decode_loop::run_prompt(whole, *cache, ids, {.scored = scored + 1});
  for (std::size_t i = 0; i < scored; ++i) {
    CAPTURE(i);
    const auto log_p = decode_loop::log_probabilities(logits.subspan(i * 50, 50));
    CHECK(got[0].surprise[i] == doctest::Approx(-log_p[static_cast<std::size_t>(ids[prompt + i + 1])]).epsilon(1e-4));
    CHECK(got[0].kl[i] == 0);
    CHECK(got[0].agrees[i] == 1);
  }
}

TEST_CASE("what sees every row diverges by rounding alone, a window by more, and wider windows by less") {
  const auto model = random_model();
  const auto ids = random_ids(prompt + scored + 1);
  const auto methods = everything();
  decode_loop::forward_pass pass(model, exec, 64);
  const auto got = quality::compare(pass, exec, methods, ids, prompt, scored, quiet);
  const auto mean_kl = [&](std::string_view name) {
    for (std::size_t m = 0; m < methods.size(); ++m) {
      if (methods[m]->name == name) return quality::summarise(got[m + 1].kl).mean;
    }
    return -1.0;
  };
  const double bf16 = mean_kl("full_bf16");
  CHECK(bf16 > 0);
  CHECK(mean_kl("full_half") > 0);
  CHECK(mean_kl("full_half") < bf16 / 8);                               // three more bits: a sixty-fourth of the squared error
  CHECK(mean_kl("window_256") == doctest::Approx(bf16).epsilon(.01));   // its window of 512 sees all 340 tokens
  CHECK(mean_kl("sweep_window_256") > 2 * bf16);
  CHECK(mean_kl("sweep_window_128") > mean_kl("sweep_window_256"));
}

TEST_CASE("too few tokens, or more caches than a pass holds, are refused") {
  const auto model = random_model();
  decode_loop::forward_pass pass(model, exec, 4);
  const auto methods = everything();
  CHECK_THROWS_AS(quality::compare(pass, exec, {}, random_ids(10), 8, 2, quiet), kvx::usage_error);
  CHECK_THROWS_AS(quality::compare(pass, exec, methods, random_ids(20), 8, 2, quiet), kvx::usage_error);
}
