// Reads a long document with a real model and decodes through kvx caches, or generates text, or records and replays traces.

#include "audit.hpp"
#include "caches.hpp"
#include "comparison.hpp"
#include "device_caches.hpp"
#include "matrix.hpp"
#include "options.hpp"
#include "replay.hpp"
#include "sampler.hpp"
#include "stored_caches.hpp"
#include "trace.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <optional>
#include <thread>

namespace decode_loop {
namespace {

constexpr std::size_t chunk = 512;                                      // tokens of a prompt that run together

/// A model that is ready to run.
struct loaded {
  explicit loaded(const gguf& file) : words(file), weights(file) {}
  tokenizer words;
  model weights;
};

std::vector<const cache_choice*> chosen(const options& o) {
  std::vector<const cache_choice*> choices;
  if (!o.cache.empty()) return {find_cache(o.cache)};
  for (const cache_choice& choice : o.backend == "device" ? device_caches() : all_caches()) {
    if (!choice.calibration.empty() && (o.audit || !o.replay.empty() || !codec_files::has(o.codecs, choice.calibration))) continue;
    if ((choice.by_default || o.all) && (choice.retrieves || !o.audit)) choices.push_back(&choice);
  }
  return choices;
}

std::vector<token_id> read_document(const options& o, const tokenizer& words) {
  const auto bytes = read_file(o.text);
  return words.encode({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

/// The document's first tokens: as many as asked for, or as there are. Says so where there are fewer.
std::vector<token_id> first_tokens(std::vector<token_id> ids, std::size_t wanted, const model_shape& shape) {
  const std::size_t most = std::min(wanted, shape.context);
  if (most < wanted) std::printf("The model was trained for %zu tokens: %zu are taken, not %zu.\n", shape.context, most, wanted);
  if (ids.size() < most) std::printf("The document has %zu tokens, fewer than %zu: all are taken.\n", ids.size(), most);
  ids.resize(std::min(ids.size(), most));
  return ids;
}

void show(const table& result, const options& o) {
  result.print(stdout);
  if (!o.csv.empty()) result.write_csv(o.csv);
}

/// The tokens of the context, of the --scored steps after it, and the one that the last of them predicts.
std::vector<token_id> scored_tokens(const options& o, const loaded& llm, const std::vector<token_id>& document) {
  const auto ids = first_tokens(document, static_cast<std::size_t>((o.context > 0 ? o.context : 4096) + o.scored + 1), llm.weights.shape);
  if (ids.size() < static_cast<std::size_t>(o.scored) + 2)
    throw file_error(o.text + ": " + std::to_string(ids.size()) + " tokens are too few to score " + std::to_string(o.scored));
  return ids;
}

void run_audit(const options& o, const kvx::host& exec, const loaded& llm) {
  auto ids = scored_tokens(o, llm, read_document(o, llm.words));
  ids.pop_back();                                                       // predicted only
  const std::size_t context = ids.size() - static_cast<std::size_t>(o.scored);
  const auto shortest = kvx::dense_below({.sink = 4, .local = 256}, o.keep);
  if (static_cast<std::int64_t>(context) < shortest)
    throw file_error(o.text + ": --audit needs a context of " + std::to_string(shortest) + " tokens; shorter ones attend densely");
  forward_pass pass(llm.weights, exec, chunk);
  const auto audited = audit_layers(pass, exec, ids, context, chosen(o), o.keep);
  show(audit_table(audited), o);
  std::printf("\nOver %zu tokens after %zu, every layer retrieving.\n%s", ids.size() - context, context, audit_verdict(audited).c_str());
}

void run_comparison(const options& o, const kvx::host& exec, const loaded& llm) {
  const auto document = read_document(o, llm.words);
  const auto ids = scored_tokens(o, llm, document);
  const auto scored = static_cast<std::size_t>(o.scored);
  forward_pass pass(llm.weights, exec, chunk);
  auto choices = chosen(o);
  const codec_files codecs(o.codecs, llm.weights);
  const compared result = compare(pass, exec, ids, ids.size() - scored - 1, choices, o.keep, &codecs);
  show(result.decoded, o);
  std::printf("\nOver %zu tokens that follow; KL in nats, to the full cache in fp32.\n", scored);
  if (!result.stored.rows.empty()) {
    std::printf("\nPrompts that went through a file (kvtc-...-quick: calibrated on few tokens; docs/results.md has whole calibrations):\n");
    result.stored.print(stdout);
  }
  std::erase_if(choices, [](const cache_choice* choice) { return !choice->calibration.empty(); });
  std::printf("\nA pass key said once, and asked for at the end:\n");
  ask_passkey(pass, exec, llm.words, document, choices, o.keep).print(stdout);
}

void run_generation(const options& o, const kvx::host& exec, const loaded& llm) {
  const auto prompt = llm.words.encode(o.prompt);
  const std::size_t context = std::min(static_cast<std::size_t>(o.context > 0 ? o.context : 2048), llm.weights.shape.context);
  if (prompt.size() >= context) {
    throw option_error("--prompt has " + std::to_string(prompt.size()) + " tokens, the context holds " + std::to_string(context));
  }
  const auto* choice = find_cache(!o.cache.empty() ? o.cache : o.backend == "device" ? "device-full" : "full");
  const auto cache = choice->make(exec, request_for(llm.weights.shape, context, chunk, o.keep));
  forward_pass pass(llm.weights, exec, chunk);
  sampler choose(o.temperature, static_cast<std::uint64_t>(o.seed));

  std::fputs(o.prompt.c_str(), stdout);
  auto logits = run_prompt(pass, *cache, prompt);
  const std::size_t most = std::min(static_cast<std::size_t>(o.tokens), context - prompt.size());
  for (std::size_t i = 0; i < most; ++i) {
    const token_id next = choose(logits);
    if (next == llm.words.end_of_text()) break;
    const auto bytes = llm.words.decode(next);
    std::fwrite(bytes.data(), 1, bytes.size(), stdout);
    std::fflush(stdout);
    if (i + 1 < most) logits = forward(pass, *cache, std::span(&next, 1));
  }
  std::fputc('\n', stdout);
}

void dump_trace(const options& o, const kvx::host& exec, const loaded& llm) {
  const model_shape& shape = llm.weights.shape;
  const auto wanted = static_cast<std::size_t>(o.context > 0 ? o.context : 4096);
  const auto ids = first_tokens(o.prompt.empty() ? read_document(o, llm.words) : llm.words.encode(o.prompt), wanted, shape);
  if (ids.empty()) throw file_error(o.text + ": no tokens");
  if (o.dump_layer >= static_cast<std::int64_t>(shape.layers)) {
    throw option_error("--dump-layer " + std::to_string(o.dump_layer) + ": the model has " + std::to_string(shape.layers) + " layers");
  }
  const bool one = o.dump_layer >= 0;
  trace_writer writer(o.dump_trace,
                      {.half = !o.dump_float,
                       .first_layer = one ? static_cast<std::uint32_t>(o.dump_layer) : 0,
                       .layers = one ? 1 : static_cast<std::uint32_t>(shape.layers),
                       .kv_heads = static_cast<std::uint32_t>(shape.kv_heads),
                       .query_heads = static_cast<std::uint32_t>(shape.query_heads),
                       .key_dim = static_cast<std::uint32_t>(shape.head_dim),
                       .value_dim = static_cast<std::uint32_t>(shape.head_dim),
                       .tokens = ids.size(),
                       .queries = o.dump_queries < 0 ? ids.size() : std::min(ids.size(), static_cast<std::size_t>(o.dump_queries)),
                       .rope_base = shape.rope_base,
                       .pairs = shape.pairs,
                       .k0 = !o.dump_no_k0});
  writer.write_ids(ids);
  forward_pass pass(llm.weights, exec, chunk);
  const auto cache = make_reference(exec, request_for(shape, ids.size(), chunk, o.keep));
  progress bar("prompt", ids.size());
  run_prompt(pass, *cache, ids,
             {.scored = 0,
              .watch = [&](std::size_t layer, const layer_rows& rows) { writer.append(layer, rows); },
              .keep_k0 = true,
              .progress = [&](std::size_t done) { bar(done); }});
  writer.finish();
  std::printf("%s: %zu tokens\n", o.dump_trace.c_str(), ids.size());
}

/// The prompt of 4,096 tokens (any: time does not depend on which) against a large product on the same threads.
void bench_prompt(const options& o, const kvx::host& exec, const loaded& llm) {
  const model_shape& shape = llm.weights.shape;
  const auto tokens = static_cast<std::size_t>(o.context > 0 ? o.context : 4096);
  std::vector<token_id> ids(tokens);
  for (std::size_t t = 0; t < tokens; ++t) ids[t] = static_cast<token_id>(t * 7919 % shape.vocabulary);
  const auto* choice = find_cache(o.cache.empty() ? "full" : o.cache);
  forward_pass pass(llm.weights, exec, chunk);

  const double count = static_cast<double>(tokens);
  const double attention = 2 * count * count * static_cast<double>(shape.head_dim * shape.query_heads * shape.layers);
  const double operations = count * shape.product_operations() + attention;
  std::vector<double> ratios;
  for (int run = 0; run < 3; ++run) {                                   // alternated: both see the same machine
    const double product = product_speed(exec, 2048);
    const auto cache = choice->make(exec, request_for(shape, tokens, chunk, o.keep));
    const auto start = std::chrono::steady_clock::now();
    run_prompt(pass, *cache, ids);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::fprintf(stderr, "prompt of %zu tokens: %.2f s (attention %.2f s), %.1f GFLOP/s; product of 2048^3: %.1f GFLOP/s\n", tokens,
                 seconds, cache->take_attention_seconds(), operations / seconds / 1e9, product / 1e9);
    ratios.push_back(operations / seconds / product);
  }
  std::sort(ratios.begin(), ratios.end());
  std::printf("loop_prompt_vs_gemm %.3f\n", ratios[1]);
}

int run(const options& o) {
  const unsigned cores = std::max(std::thread::hardware_concurrency(), 1U);
  const kvx::host exec{.threads = o.threads > 0 ? static_cast<int>(o.threads) : static_cast<int>(cores)};
  if (!o.csv.empty()) table{}.write_csv(o.csv);                         // refused now, not after minutes
  if (!o.replay.empty()) {
    trace_reader trace(o.replay);
    show(replay(trace, exec, chosen(o), o.keep), o);
    return 0;
  }
  std::optional<gguf> file(o.model);
  const loaded llm(*file);
  file.reset();                                                         // the weights are floats now
  if (o.bench_prompt) {
    bench_prompt(o, exec, llm);
  } else if (!o.dump_trace.empty()) {
    dump_trace(o, exec, llm);
  } else if (!o.prompt.empty()) {
    run_generation(o, exec, llm);
  } else if (o.audit) {
    run_audit(o, exec, llm);
  } else {
    run_comparison(o, exec, llm);
  }
  return 0;
}

}  // namespace
}  // namespace decode_loop

int main(int count, char** arguments) {
  try {
    auto o = decode_loop::parse_options(count, arguments);
    if (o.backend == "device" && decode_loop::device_caches().empty()) {
      std::fputs("decode_loop: no CUDA device here, or built without CUDA: the caches of the host\n", stderr);
      o.backend = "host";
    }
    if (o.help) {
      std::fputs(decode_loop::help_text().c_str(), stdout);
      return 0;
    }
    return decode_loop::run(o);
  } catch (const decode_loop::option_error& error) {
    std::fprintf(stderr, "decode_loop: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "decode_loop: %s\n", error.what());
    return 1;
  }
}
