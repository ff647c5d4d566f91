// Prints how many of the keys that matter the search finds, head by head, on a real model and real text.

#include "command_line.hpp"
#include "head_metrics.hpp"
#include "method.hpp"
#include "model_heads.hpp"
#include "text_heads.hpp"

#include <gguf.hpp>

#include <cstdio>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr const char* help = R"(usage: bench_heads --model FILE --text NAME=FILE [--text NAME=FILE ...] [--filter STRING]
                   [--tokens N] [--positions N] [--made-up N] [--chunk N] [--threads N] [--list]
  --text        names of prose are printed as they are, those of another text with .NAME behind them
  --filter      only metrics whose names contain it
  --tokens      of the text (8192)
  --positions   queries, spread evenly over the last eighth of the tokens (64)
  --chunk       tokens of one pass of the prompt (512)
  --threads     default: one a core
  --made-up     so many heads of keys as those of a text lie, printed with .made_up behind the names (0)
  --list        the metrics that a filter picks, and nothing else
)";

int run(const quality::options& o, std::size_t tokens, std::size_t positions, std::size_t made_up) {
  std::vector<const quality::head_metric*> metrics;
  for (const auto& table : {quality::all_head_metrics(), quality::all_page_metrics()}) {
    for (const quality::head_metric& m : table) {
      const bool listed = o.list && o.filter.empty();
      if (!listed && !quality::wanted(m, o.filter)) continue;
      metrics.push_back(&m);
      if (o.list) std::cout << m.name << (m.on_request ? "   on request\n" : "\n");
    }
  }
  if (o.list) return 0;
  if (metrics.empty()) throw std::runtime_error("--filter is '" + o.filter + "', which no metric's name contains; --list shows them");

  const kvx::host exec{.threads = static_cast<int>(o.threads)};
  const decode_loop::gguf file(o.model);
  const decode_loop::model weights(file);
  const decode_loop::tokenizer words(file);
  decode_loop::forward_pass pass(weights, exec, o.chunk);
  const auto end = static_cast<std::int64_t>(tokens);
  const auto asked = quality::spread(end - end / 8, end - 1, static_cast<std::int64_t>(positions));

  const auto print = [&](const std::string& suffix, const std::vector<quality::head_rows>& heads) {
    for (const quality::head_metric* m : metrics) {
      quality::print_value(std::cout, m->name, suffix, quality::summary_of(exec, *m, heads));
      std::cout << std::flush;
    }
  };
  for (const quality::named_text& text : o.texts) {
    auto ids = quality::read_tokens(text, words, tokens);
    ids.resize(tokens);
    std::fprintf(stderr, "%s\n", text.name.c_str());
    print(text.suffix(),
          quality::heads_of(pass, exec, ids, asked, [&](std::size_t done) { quality::show_progress("prompt", done, tokens); }));
  }
  if (made_up > 0) print("made_up", quality::text_heads(static_cast<int>(made_up), end, asked));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::size_t tokens = 8192, positions = 64, made_up = 0;
    const auto o = quality::parse(
        argc, argv, {{"--tokens", &tokens, 2048, 1 << 20}, {"--positions", &positions, 1, 128}, {"--made-up", &made_up, 0, 1024}});
    if (o.help) {
      std::cout << help;
      return 0;
    }
    return run(o, tokens, positions, made_up);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_heads: %s\n", error.what());
    return 2;
  }
}
