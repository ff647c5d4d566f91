// One long document, three questions: the prompt is run once, forked three times, and the answers are decoded as one batch.
//
// usage: prefix_sharing MODEL.gguf DOCUMENT.txt

#include "file_error.hpp"
#include "forward_pass.hpp"
#include "gguf.hpp"
#include "model.hpp"
#include "sampler.hpp"
#include "tokenizer.hpp"

#include <kvx/kvx.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace decode_loop;
using cache_type = kvx::cache<kvx::host, kvx::full<kvx::bf16, 64>>;

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// One forward pass over a ragged batch; the tokens of all entries stand in `ids`, one after the other.
std::span<const float> forward(forward_pass& pass, cache_type& cache, const kvx::host& exec, std::span<const kvx::advance> batch,
                               std::span<const token_id> ids) {
  kvx::step step = cache.begin(exec, batch);
  std::vector<std::int64_t> positions;
  for (const auto& entry : step.entries()) {
    for (std::int64_t i = 0; i < entry.tokens; ++i) positions.push_back(entry.length + i);
  }
  pass.embed(ids, positions);
  for (std::size_t layer = 0; layer < pass.weights().shape.layers; ++layer) {
    const layer_rows rows = pass.project(layer);
    cache.append(exec, step, static_cast<int>(layer), rows.k.data(), rows.v.data());
    cache.attend(exec, step, static_cast<int>(layer), rows.q.data(), rows.out.data());
    pass.mix(layer);
  }
  cache.commit(exec, step);
  return pass.logits(ids.size());
}

void run(const char* model_path, const char* text_path) {
  const gguf file{std::string(model_path)};
  const tokenizer words(file);
  const model weights(file);
  const model_shape& shape = weights.shape;
  kvx::require(shape.head_dim == 64, "this example is compiled for heads of 64", kvx::call_site::here());
  std::ifstream stream(text_path);
  const std::string text((std::istreambuf_iterator<char>(stream)), {});
  kvx::require(!text.empty(), "the document is empty or cannot be read", kvx::call_site::here());

  std::vector<token_id> document = words.encode(text);
  document.resize(std::min<std::size_t>(document.size(), 2000));
  const std::array<std::string, 3> questions = {"\n\nQuestion: What is this text about?\nAnswer:",
                                                "\n\nQuestion: Who is named in it?\nAnswer:", "\n\nIn one sentence, the text says that"};
  constexpr std::size_t answer_tokens = 24;

  const kvx::host exec{.threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()))};
  forward_pass pass(weights, exec, 512);
  const kvx::geometry geometry{.layers = static_cast<int>(shape.layers),
                               .kv_heads = static_cast<int>(shape.kv_heads),
                               .query_heads = static_cast<int>(shape.query_heads),
                               .max_tokens = 4096,
                               .max_sequences = 4};
  cache_type cache(exec, {}, geometry);

  // The document, once, in chunks of 512 tokens.
  const kvx::sequence prefix = cache.open(exec);
  double start = seconds();
  for (std::size_t done = 0; done < document.size(); done += 512) {
    const std::span<const token_id> chunk = std::span(document).subspan(done, std::min<std::size_t>(512, document.size() - done));
    const kvx::advance entry{prefix, static_cast<std::int64_t>(chunk.size())};
    forward(pass, cache, exec, {&entry, 1}, chunk);
  }
  const double prompt_seconds = seconds() - start;
  const std::int64_t alone = cache.stats().row_bytes;

  // Three forks and one ragged batch with the three questions.
  start = seconds();
  std::array<kvx::sequence, 3> talks;
  for (kvx::sequence& talk : talks) talk = cache.fork(exec, prefix);
  const double fork_seconds = seconds() - start;
  const std::int64_t copied_by_forks = cache.stats().rows_copied;

  start = seconds();
  std::vector<kvx::advance> batch;
  std::vector<token_id> ids;
  std::array<std::size_t, 3> last{};
  for (std::size_t i = 0; i < 3; ++i) {
    const std::vector<token_id> question = words.encode(questions[i]);
    batch.push_back({talks[i], static_cast<std::int64_t>(question.size())});
    ids.insert(ids.end(), question.begin(), question.end());
    last[i] = ids.size() - 1;
  }
  std::array<std::string, 3> answers;
  std::vector<token_id> next(3);
  std::span<const float> logits = forward(pass, cache, exec, batch, ids);
  for (std::size_t i = 0; i < 3; ++i) next[i] = most_likely(logits.subspan(last[i] * shape.vocabulary, shape.vocabulary));
  for (std::size_t t = 0; t < answer_tokens; ++t) {
    for (std::size_t i = 0; i < 3; ++i) {
      answers[i] += words.decode(next[i]);
      batch[i].tokens = 1;
    }
    logits = forward(pass, cache, exec, batch, next);
    for (std::size_t i = 0; i < 3; ++i) next[i] = most_likely(logits.subspan(i * shape.vocabulary, shape.vocabulary));
  }
  const double answer_seconds = seconds() - start;

  for (std::size_t i = 0; i < 3; ++i) std::printf("%s%s\n", questions[i].c_str(), answers[i].c_str());
  const kvx::cache_stats stats = cache.stats();
  const double mib = 1 << 20;
  std::printf("\nprompt of %zu tokens         %8.2f s, once (three times: %.2f s)\n", document.size(), prompt_seconds, 3 * prompt_seconds);
  std::printf("three forks                  %8.6f s, %lld rows copied\n", fork_seconds, static_cast<long long>(copied_by_forks));
  std::printf("questions and %2zu tokens each %8.2f s\n", answer_tokens, answer_seconds);
  std::printf("memory of rows               %8.1f MiB with one sequence, %.1f with four; four unshared would take %.1f\n",
              static_cast<double>(alone) / mib, static_cast<double>(stats.row_bytes) / mib,
              (static_cast<double>(stats.row_bytes) + 3 * static_cast<double>(alone)) / mib);
  std::printf("pages in use                 %8lld, %lld of them shared; %lld rows copied on write\n",
              static_cast<long long>(stats.pages_used), static_cast<long long>(stats.pages_shared),
              static_cast<long long>(stats.rows_copied));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: prefix_sharing MODEL.gguf DOCUMENT.txt\n", stderr);
    return 2;
  }
  try {
    run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "prefix_sharing: %s\n", error.what());
    return 1;
  }
}
