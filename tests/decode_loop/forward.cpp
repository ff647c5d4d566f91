// The forward pass through kvx equals the definition, however the tokens are cut into passes.

#include "plain_forward.hpp"
#include "tiny_model.hpp"

#include <caches.hpp>
#include <comparison.hpp>
#include <forward.hpp>

#include <doctest/doctest.h>

using namespace decode_loop;

namespace {

std::vector<token_id> some_ids(std::size_t count) {
  std::vector<token_id> ids(count);
  for (std::size_t i = 0; i < count; ++i) ids[i] = static_cast<token_id>(i * 37 % 300);
  return ids;
}

double distance(std::span<const float> logits, const test::row& expected) {
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) worst = std::max(worst, std::abs(static_cast<double>(logits[i]) - expected[i]));
  return worst;
}

}  // namespace

TEST_CASE("logits equal the definition's for both pairings, tied or not, in any chunks") {
  for (const test::tiny_form form : {test::tiny_form{}, {.tied = false}, {.half_split = true}, {.half_split = true, .tied = false}}) {
    CAPTURE(form.half_split);
    CAPTURE(form.tied);
    const model weights(gguf(test::tiny_model(form), "tiny"));
    const auto ids = some_ids(70);
    const auto expected = test::plain_forward(weights, ids);            // (70, 300)
    for (const int threads : {1, 2}) {
      const kvx::host exec{.threads = threads};
      for (const std::size_t chunk : {1U, 3U, 33U, 40U, 70U}) {  // beside and across the 32 rows that each thread of a product takes
        CAPTURE(chunk);
        forward_pass pass(weights, exec, chunk);
        const auto cache = make_reference(exec, request_for(weights.shape, 70, chunk, 16));
        for (std::size_t done = 0; done < ids.size(); done += chunk) {
          const std::size_t count = std::min(chunk, ids.size() - done);
          const auto logits = forward(pass, *cache, std::span(ids).subspan(done, count), count);  // (count, 300)
          for (std::size_t t = 0; t < count; ++t) REQUIRE(distance(logits.subspan(t * 300, 300), expected[done + t]) < 2e-4);
        }
      }
    }
  }
}

TEST_CASE("the shape says what the file says") {
  const model weights(gguf(test::tiny_model({.half_split = true}), "tiny"));
  CHECK(weights.shape.layers == 2);
  CHECK(weights.shape.head_dim == 64);
  CHECK(weights.shape.kv_heads == 1);
  CHECK(weights.shape.pairs == rope_pairs::half_split);
  CHECK(weights.shape.product_operations() == 2.0 * 2 * 48 * (128 + 64 + 64 + 128 + 3 * 40));
  CHECK(weights.layers[0].query_bias.size() == 128);
  CHECK(&weights.output() == &weights.embedding);
}

TEST_CASE("a watch sees q, k, v and k before RoPE; copies get the same rows") {
  const kvx::host exec{.threads = 1};
  const model weights(gguf(test::tiny_model(), "tiny"));
  const auto ids = some_ids(20);
  forward_pass pass(weights, exec, 8);
  const auto request = request_for(weights.shape, 32, 8, 16);
  const auto cache = make_reference(exec, request);
  const auto copy = make_reference(exec, request);
  any_cache* const copies[] = {copy.get()};

  std::size_t rows_seen = 0, chunks = 0;
  run_prompt(pass, *cache, ids,
             {.copies = copies,
              .watch =
                  [&](std::size_t layer, const layer_rows& rows) {
                    REQUIRE(rows.k0.size() == rows.k.size());
                    if (layer == 0) rows_seen += rows.k.size() / 64;
                    const bool first = layer == 0 && rows_seen == rows.k.size() / 64;
                    if (first) CHECK(rows.k[0] == rows.k0[0]);  // position 0 is not turned
                    if (first) CHECK(rows.k[64] != rows.k0[64]);
                  },
              .keep_k0 = true,
              .progress = [&](std::size_t) { ++chunks; }});
  CHECK(rows_seen == 20);
  CHECK(chunks == 3);
  CHECK(copy->length() == 20);

  const token_id next = 5;
  const auto straight = forward(pass, *cache, std::span(&next, 1));
  const std::vector<float> expected(straight.begin(), straight.end());
  const auto through_copy = forward(pass, *copy, std::span(&next, 1));
  CHECK(std::equal(expected.begin(), expected.end(), through_copy.begin()));
}

TEST_CASE("the columns of a retrieving cache count as bytes near the processor") {
  const kvx::host exec{.threads = 1};
  const model weights(gguf(test::tiny_model(), "tiny"));
  forward_pass pass(weights, exec, 70);
  auto request = request_for(weights.shape, 128, 70, 16);
  request.dense_layers = 1;
  const auto cache = find_cache("paris_kv")->make(exec, request);
  forward(pass, *cache, some_ids(70));
  constexpr std::int64_t pages = 2, codes = 64 * (8 + 1 + 2 + 24 + 16);  // signs, norms, means, magnitudes, weights at D 64
  CHECK(cache->stats().column_bytes == pages * codes);                  // one layer of the two, one KV head
  CHECK(cache->stats().near_bytes() == pages * (codes + 2 * 64 * 2 * 64 * 2));
}

TEST_CASE("tokens outside the vocabulary, empty and oversized passes are refused") {
  const kvx::host exec{.threads = 1};
  const model weights(gguf(test::tiny_model(), "tiny"));
  forward_pass pass(weights, exec, 4);
  const std::vector<token_id> outside{300}, negative{-1}, many(5, 1);
  CHECK_THROWS_AS(pass.embed(outside, 0), kvx::usage_error);
  CHECK_THROWS_AS(pass.embed(negative, 0), kvx::usage_error);
  CHECK_THROWS_AS(pass.embed(many, 0), kvx::usage_error);
  CHECK_THROWS_AS(pass.embed({}, 0), kvx::usage_error);
}

TEST_CASE("the comparison: the fp32 cache is at distance 0, a small window is not") {
  const kvx::host exec{.threads = 2};
  const model weights(gguf(test::tiny_model(), "tiny"));
  forward_pass pass(weights, exec, 64);
  std::vector<token_id> ids = some_ids(340);
  for (const cache_choice& choice : all_caches()) {
    if (!choice.calibration.empty()) continue;                          // stored.cpp
    CAPTURE(choice.name);
    const cache_choice* const one[] = {&choice};
    const table result = compare(pass, exec, ids, 320, one, 8).decoded;
    REQUIRE(result.rows.size() == 1);
    REQUIRE(result.rows[0].size() == result.columns.size());
    CHECK(result.rows[0][0] == choice.name);
    CHECK(result.rows[0][1] == "320");
    if (choice.name == "full-float") {
      CHECK(result.rows[0][6] == "0.0000");
      CHECK(result.rows[0][8] == "1.000");
      CHECK(result.rows[0][2] == number(384.0 * 2 * 64 * 4 * 2 / 339, 0));  // 6 pages of 64 rows, K and V, 2 layers, over 339 tokens
    } else {
      CHECK(result.rows[0][6] != "0.0000");
    }
  }
}
