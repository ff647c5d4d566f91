// Speculative decoding without a second model: tokens that followed the same words before are proposed, verified in one step, and
// those that the model would not have said are rolled back.
//
// usage: speculative_decoding MODEL.gguf DOCUMENT.txt

#include "file_error.hpp"
#include "forward_pass.hpp"
#include "gguf.hpp"
#include "model.hpp"
#include "sampler.hpp"
#include "tokenizer.hpp"

#include <kvx/kvx.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace decode_loop;
using cache_type = kvx::cache<kvx::host, kvx::full<kvx::bf16, 64>>;

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// What followed the latest earlier occurrence of the last two tokens, at most `most` tokens.
std::vector<token_id> guess(const std::vector<token_id>& text, std::size_t most) {
  const std::size_t n = text.size();
  for (std::size_t i = n - 1; n >= 3 && i-- > 1;) {
    if (text[i] == text[n - 1] && text[i - 1] == text[n - 2]) {
      const std::size_t count = std::min(most, n - 1 - i);
      return {text.begin() + static_cast<std::ptrdiff_t>(i + 1), text.begin() + static_cast<std::ptrdiff_t>(i + 1 + count)};
    }
  }
  return {};
}

/// A decoder of one sequence whose steps may be cut short.
class decoder {
 public:
  decoder(const model& weights, const kvx::host& exec, std::int64_t max_tokens)
      : exec_(exec),
        pass_(weights, exec, 512),
        cache_(exec, {},
               {.layers = static_cast<int>(weights.shape.layers),
                .kv_heads = static_cast<int>(weights.shape.kv_heads),
                .query_heads = static_cast<int>(weights.shape.query_heads),
                .max_tokens = max_tokens}),
        text_(cache_.open(exec)) {}

  /// Runs `ids` and returns what the model says after each of the last `scored`. The step stays open.
  std::vector<token_id> run(std::span<const token_id> ids, std::size_t scored) {
    step_.emplace(cache_.begin(exec_, {{text_, static_cast<std::int64_t>(ids.size())}}));
    pass_.embed(ids, cache_.length(text_));
    const model_shape& shape = pass_.weights().shape;
    for (std::size_t layer = 0; layer < shape.layers; ++layer) {
      const layer_rows rows = pass_.project(layer);
      cache_.append(exec_, *step_, static_cast<int>(layer), rows.k.data(), rows.v.data());
      cache_.attend(exec_, *step_, static_cast<int>(layer), rows.q.data(), rows.out.data());
      pass_.mix(layer);
    }
    const std::span<const float> logits = pass_.logits(scored);
    std::vector<token_id> said;
    for (std::size_t i = 0; i < scored; ++i) said.push_back(most_likely(logits.subspan(i * shape.vocabulary, shape.vocabulary)));
    return said;
  }

  /// Keeps the first `tokens` tokens of the step; the others have never been.
  void keep(std::int64_t tokens) { cache_.commit(exec_, *step_, std::span(&tokens, 1)); }

  /// Runs a prompt in chunks and returns the token after it.
  token_id prompt(const std::vector<token_id>& ids) {
    token_id next = 0;
    for (std::size_t done = 0; done < ids.size(); done += 512) {
      const auto chunk = std::span(ids).subspan(done, std::min<std::size_t>(512, ids.size() - done));
      next = run(chunk, 1)[0];
      keep(static_cast<std::int64_t>(chunk.size()));
    }
    return next;
  }

  void forget_behind(std::int64_t tokens) { cache_.truncate(exec_, text_, tokens); }

 private:
  kvx::host exec_;
  forward_pass pass_;
  cache_type cache_;
  kvx::sequence text_;
  std::optional<kvx::step> step_;
};

void run(const char* model_path, const char* text_path) {
  const gguf file{std::string(model_path)};
  const tokenizer words(file);
  const model weights(file);
  kvx::require(weights.shape.head_dim == 64, "this example is compiled for heads of 64", kvx::call_site::here());
  std::ifstream stream(text_path);
  const std::string text((std::istreambuf_iterator<char>(stream)), {});
  std::vector<token_id> ids = words.encode(text);
  kvx::require(ids.size() >= 64, "the document is shorter than 64 tokens or cannot be read", kvx::call_site::here());
  ids.resize(std::min<std::size_t>(ids.size(), 1500));
  constexpr std::size_t new_tokens = 96, most_guessed = 7;

  const kvx::host exec{.threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()))};
  decoder decode(weights, exec, 4096);
  const token_id first = decode.prompt(ids);

  // One token after the other.
  std::vector<token_id> plain = {first};
  double start = seconds();
  while (plain.size() < new_tokens) {
    plain.push_back(decode.run(std::span(&plain.back(), 1), 1)[0]);
    decode.keep(1);
  }
  const double plain_seconds = seconds() - start;
  decode.forget_behind(static_cast<std::int64_t>(ids.size()));

  // The same text in fewer steps: the last token and a guess in one step; what the model confirms stays.
  std::vector<token_id> all = ids;
  all.push_back(first);
  std::size_t steps = 0, guessed = 0, confirmed = 0;
  start = seconds();
  while (all.size() - ids.size() < new_tokens) {
    std::vector<token_id> step = {all.back()};
    const std::vector<token_id> next = guess(all, most_guessed);
    step.insert(step.end(), next.begin(), next.end());
    const std::vector<token_id> said = decode.run(step, step.size());
    std::size_t good = 0;
    while (good < next.size() && next[good] == said[good]) ++good;
    decode.keep(static_cast<std::int64_t>(good) + 1);
    all.insert(all.end(), said.begin(), said.begin() + static_cast<std::ptrdiff_t>(good) + 1);
    ++steps;
    guessed += next.size();
    confirmed += good;
  }
  const double speculative_seconds = seconds() - start;
  const std::vector<token_id> speculative(all.begin() + static_cast<std::ptrdiff_t>(ids.size()),
                                          all.begin() + static_cast<std::ptrdiff_t>(ids.size() + new_tokens));

  std::printf("%s\n\n", words.decode(plain).c_str());
  std::printf("one by one    %3zu steps  %6.2f s\n", new_tokens - 1, plain_seconds);
  std::printf("speculative   %3zu steps  %6.2f s   %zu of %zu guesses confirmed, the others rolled back\n", steps, speculative_seconds,
              confirmed, guessed);
  std::printf("same tokens   %s\n", plain == speculative ? "yes" : "no (two tokens of almost equal probability changed places)");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: speculative_decoding MODEL.gguf DOCUMENT.txt\n", stderr);
    return 2;
  }
  try {
    run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "speculative_decoding: %s\n", error.what());
    return 1;
  }
}
