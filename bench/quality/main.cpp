// Prints KL, agreement and perplexity of every method against the dense reference, on a real model and real text.

#include "command_line.hpp"
#include "compare.hpp"

#include <gguf.hpp>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr const char* help = R"(usage: bench_quality --model FILE --text NAME=FILE [--text NAME=FILE ...] [--filter STRING]
                     [--prompt N] [--scored N] [--chunk N] [--threads N] [--list]
  --text      names of prose are printed as they are, those of another text with .NAME behind them
  --filter    only methods one of whose printed names contains it
  --prompt    tokens run dense before anything is scored (6144)
  --scored    tokens scored, one decode step each (512)
  --chunk     tokens of one pass of the prompt (512)
  --threads   default: one a core
  --list      the methods that a filter picks, and nothing else
)";

int run(const quality::options& o, std::size_t prompt, std::size_t scored) {
  std::vector<const quality::method*> methods;
  for (const quality::method& m : quality::all_methods()) {
    const bool listed = o.list && o.filter.empty();
    if (!listed && !quality::wanted(m, o.filter)) continue;
    methods.push_back(&m);
    if (o.list) std::cout << m.name << (m.on_request ? "   on request\n" : "\n");
  }
  if (o.list) return 0;
  if (methods.empty()) throw std::runtime_error("--filter is '" + o.filter + "', which no method's name contains; --list shows them");

  const kvx::host exec{.threads = static_cast<int>(o.threads)};
  const decode_loop::gguf file(o.model);
  const decode_loop::model weights(file);
  const decode_loop::tokenizer tokens(file);
  decode_loop::forward_pass pass(weights, exec, std::max(o.chunk, methods.size() + 1));

  for (const quality::named_text& text : o.texts) {
    const auto ids = quality::read_tokens(text, tokens, prompt + scored + 1);
    std::fprintf(stderr, "%s\n", text.name.c_str());
    const auto all = quality::compare(pass, exec, methods, ids, prompt, scored, quality::show_progress);
    const std::string suffix = text.suffix();
    quality::print_value(std::cout, "perplexity_dense", suffix, exponential(quality::summarise(all[0].surprise)));
    for (std::size_t m = 0; m < methods.size(); ++m) methods[m]->print(std::cout, *methods[m], suffix, all[m + 1]);
    const auto scores_of = [&](std::string_view name) -> const quality::scores* {
      const auto at = std::find_if(methods.begin(), methods.end(), [&](const quality::method* m) { return m->name == name; });
      return at != methods.end() ? &all[static_cast<std::size_t>(at - methods.begin()) + 1] : nullptr;
    };
    for (const quality::quotient& q : quality::all_quotients()) {
      const quality::scores *above = scores_of(q.above), *below = scores_of(q.below);
      if (above != nullptr && below != nullptr) quality::print_value(std::cout, q.name, suffix, quality::quotient_of(above->kl, below->kl));
    }
    std::cout << std::flush;

    const auto tiered = std::find_if(methods.begin(), methods.end(), [](const quality::method* m) { return m->name == "tiered_32"; });
    constexpr std::size_t own = 1024;
    if (tiered == methods.end() || !suffix.empty() || prompt <= own) continue;
    const auto drifted = quality::with_own_tail(pass, exec, ids, prompt, own, quality::show_progress);
    const auto far = quality::compare(pass, exec, std::span(tiered, 1), drifted, prompt, scored, quality::show_progress);
    quality::print_value(std::cout, "kl_tiered_32_drift", suffix, quality::summarise(far[1].kl));
    std::cout << std::flush;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::size_t prompt = 6144, scored = 512;
    const auto o = quality::parse(argc, argv, {{"--prompt", &prompt, 1, 1 << 20}, {"--scored", &scored, 1, 1 << 20}});
    if (o.help) {
      std::cout << help;
      return 0;
    }
    return run(o, prompt, scored);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_quality: %s\n", error.what());
    return 2;
  }
}
