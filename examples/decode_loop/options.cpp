#include "options.hpp"

#include "caches.hpp"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <variant>

namespace decode_loop {
namespace {

constexpr std::string_view usage = R"(usage: decode_loop --model FILE [options]

Without --prompt: reads a long document once, decodes its next tokens through each cache type, and prints a table.
  --text FILE          the document; run.sh takes examples/data/document.txt
  --context N          tokens of the document before the scored ones (default 4096)
  --scored N           tokens decoded through each cache (default 128)
  --all                every setting of every system, not one each
  --codecs FOLDER      calibrations (examples/calibrate): kvtc lines store the prompt, restore it and go on
  --audit              instead of the table: what each layer loses by retrieving, and which layers should be dense
With --prompt TEXT: generates text token by token.
  --tokens N           at most so many new tokens (default 128)
  --context N          tokens that the cache holds (default 2048)
  --temperature X      0 takes the most likely token (default 0)
  --seed N             of the random draws (default 0)
Both:
  --cache NAME         this cache type alone (default of --prompt: full)
  --keep N             tokens that a retrieving layer may fetch (default 256)
  --threads N          default: all cores
  --backend NAME       host, or device: the model on the host, the cache on the GPU (where there is none: the host's)
  --csv FILE           writes the table as CSV too
Instead:
  --dump-trace FILE    runs the document's first --context tokens and writes q, k, v and k before RoPE (format: trace.hpp)
    --dump-layer L       one layer alone        --dump-queries N   queries of the last N tokens alone
    --dump-float         float, not half        --dump-no-k0       without k before RoPE
  --replay FILE        no model: attention through each cache over a recorded trace, against exact attention
  --bench-prompt       prints loop_prompt_vs_gemm: the prompt's operations per second over those of a 2048^3 product
  --help, -h

Cache types (* in the table without --all):
)";

constexpr std::int64_t most_tokens = 1 << 24;

/// An option and the field it fills; a bool is set, every other field takes the next argument.
struct option {
  std::string_view name;
  std::variant<bool options::*, std::string options::*, std::int64_t options::*, double options::*> field;
  std::int64_t low = 0;
  std::int64_t high = 0;
};

const option known[] = {
    {"--model", &options::model},
    {"--text", &options::text},
    {"--prompt", &options::prompt},
    {"--cache", &options::cache},
    {"--backend", &options::backend},
    {"--codecs", &options::codecs},
    {"--csv", &options::csv},
    {"--dump-trace", &options::dump_trace},
    {"--replay", &options::replay},
    {"--all", &options::all},
    {"--audit", &options::audit},
    {"--bench-prompt", &options::bench_prompt},
    {"--dump-float", &options::dump_float},
    {"--dump-no-k0", &options::dump_no_k0},
    {"--help", &options::help},
    {"-h", &options::help},
    {"--keep", &options::keep, 1, most_tokens},
    {"--context", &options::context, 1, most_tokens},
    {"--scored", &options::scored, 1, most_tokens},
    {"--tokens", &options::tokens, 1, most_tokens},
    {"--threads", &options::threads, 1, 1024},
    {"--seed", &options::seed, 0, INT64_MAX},
    {"--dump-layer", &options::dump_layer, 0, 4095},
    {"--dump-queries", &options::dump_queries, 0, most_tokens},
    {"--temperature", &options::temperature, 0, 100},
};

template <class T>
T parse_number(const option& what, std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || !(value >= static_cast<T>(what.low) && value <= static_cast<T>(what.high))) {
    throw option_error(std::string(what.name) + " '" + std::string(text) + "': a number from " + std::to_string(what.low) + " to " +
                       std::to_string(what.high) + " is needed");
  }
  return value;
}

}  // namespace

options parse_options(int count, const char* const* arguments) {
  options o;
  for (int i = 1; i < count; ++i) {
    const auto* found = std::find_if(std::begin(known), std::end(known), [&](const option& k) { return k.name == arguments[i]; });
    if (found == std::end(known)) throw option_error("'" + std::string(arguments[i]) + "' is no option; --help lists them");
    if (const auto* flag = std::get_if<bool options::*>(&found->field)) {
      o.** flag = true;
      continue;
    }
    if (++i == count) throw option_error(std::string(found->name) + " needs a value");
    if (const auto* text = std::get_if<std::string options::*>(&found->field)) {
      o.** text = arguments[i];
      if (arguments[i][0] == '\0') throw option_error(std::string(found->name) + " '': the value is empty");
    } else if (const auto* integer = std::get_if<std::int64_t options::*>(&found->field)) {
      o.** integer = parse_number<std::int64_t>(*found, arguments[i]);
    } else {
      o.*std::get<double options::*>(found->field) = parse_number<double>(*found, arguments[i]);
    }
  }
  if (o.help) return o;
  if (o.backend != "host" && o.backend != "device") throw option_error("--backend '" + o.backend + "': host or device");
  if (o.backend == "device" && o.audit) throw option_error("--audit is for --backend host");
  if (!o.prompt.empty() && !o.text.empty()) throw option_error("--prompt and --text exclude each other");
  if (!o.cache.empty() && find_cache(o.cache) == nullptr)
    throw option_error("--cache '" + o.cache + "' is no cache type; --help lists them");
  if (!o.cache.empty() && o.codecs.empty() && !find_cache(o.cache)->calibration.empty())
    throw option_error("--cache '" + o.cache + "' stores its prompt: --codecs FOLDER is needed");
  if (o.audit && (!o.prompt.empty() || !o.replay.empty() || !o.dump_trace.empty() || o.bench_prompt))
    throw option_error("--audit needs a document: it excludes --prompt, --replay, --dump-trace and --bench-prompt");
  if (o.audit && !o.cache.empty() && !find_cache(o.cache)->retrieves)
    throw option_error("--audit --cache '" + o.cache + "': this cache does not retrieve");
  if (o.model.empty() && o.replay.empty()) throw option_error("--model FILE is needed (or --replay FILE); examples/run.sh fetches a model");
  if (o.prompt.empty() && o.text.empty() && o.replay.empty() && !o.bench_prompt)
    throw option_error("--text FILE or --prompt TEXT is needed");
  return o;
}

std::string help_text() {
  std::string text(usage);
  for (const cache_choice& choice : all_caches()) {
    const std::string_view mark = choice.by_default ? "* " : "  ";
    text += "  " + std::string(mark) + std::string(choice.name) + std::string(choice.name.size() < 20 ? 20 - choice.name.size() : 1, ' ');
    text += std::string(choice.what) + "\n";
  }
  return text;
}

}  // namespace decode_loop
