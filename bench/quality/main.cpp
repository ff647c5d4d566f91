// Prints KL, agreement and perplexity of every method against the dense reference, on a real model and real text.

#include "compare.hpp"

#include <gguf.hpp>

#include <unistd.h>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <thread>
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
  --list      the methods
)";

struct named_text {
  std::string name;
  std::string path;
};

struct options {
  std::string model;
  std::vector<named_text> texts;
  std::string filter;
  std::size_t prompt = 6144;
  std::size_t scored = 512;
  std::size_t chunk = 512;
  std::size_t threads = std::max(1U, std::thread::hardware_concurrency());
  bool list = false;
  bool help = false;
};

std::size_t number(const std::string& option, const std::string& text, std::size_t low, std::size_t high) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    throw std::runtime_error(option + " is '" + text + "', allowed are " + std::to_string(low) + " to " + std::to_string(high));
  }
  return value;
}

options parse(int argc, char** argv) {
  options o;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--help" || name == "-h") {
      o.help = true;
      return o;
    }
    if (name == "--list") {
      o.list = true;
      continue;
    }
    if (i + 1 == argc) throw std::runtime_error("'" + name + "' is no option, or lacks its value; --help lists them");
    const std::string value = argv[++i];
    if (name == "--model") {
      o.model = value;
    } else if (name == "--text") {
      const std::size_t equals = value.find('=');
      if (equals == std::string::npos || equals == 0) throw std::runtime_error("--text is '" + value + "', allowed is NAME=FILE");
      o.texts.push_back({value.substr(0, equals), value.substr(equals + 1)});
    } else if (name == "--filter") {
      o.filter = value;
    } else if (name == "--prompt") {
      o.prompt = number(name, value, 1, 1 << 20);
    } else if (name == "--scored") {
      o.scored = number(name, value, 1, 1 << 20);
    } else if (name == "--chunk") {
      o.chunk = number(name, value, 1, 1 << 16);
    } else if (name == "--threads") {
      o.threads = number(name, value, 1, 1024);
    } else {
      throw std::runtime_error("'" + name + "' is no option; --help lists them");
    }
  }
  if (!o.list && (o.model.empty() || o.texts.empty())) throw std::runtime_error("--model and --text are needed; --help says more");
  return o;
}

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in && text.empty()) throw std::runtime_error(path + ": cannot be read");
  return text;
}

/// Ten lines a stage, or one that renews itself on a terminal.
void show_progress(const char* what, std::size_t done, std::size_t of) {
  static const bool terminal = isatty(STDERR_FILENO) != 0;
  static std::size_t shown = 0;
  const std::size_t tenth = 10 * done / of;
  if (terminal) {
    std::fprintf(stderr, "\r%s %zu of %zu tokens%s", what, done, of, done == of ? "\n" : "");
  } else if (tenth > shown) {
    std::fprintf(stderr, "%s %zu of %zu tokens\n", what, done, of);
  }
  shown = done == of ? 0 : tenth;
}

int run(const options& o) {
  std::vector<const quality::method*> methods;
  for (const quality::method& m : quality::all_methods()) {
    if (o.list) std::cout << m.name << (m.on_request ? "   on request\n" : "\n");
    if (quality::wanted(m, o.filter)) methods.push_back(&m);
  }
  if (o.list) return 0;
  if (methods.empty()) throw std::runtime_error("--filter is '" + o.filter + "', which no method's name contains; --list shows them");

  const kvx::host exec{.threads = static_cast<int>(o.threads)};
  const decode_loop::gguf file(o.model);
  const decode_loop::model weights(file);
  const decode_loop::tokenizer tokens(file);
  decode_loop::forward_pass pass(weights, exec, std::max(o.chunk, methods.size() + 1));

  for (const named_text& text : o.texts) {
    const auto ids = tokens.encode(read_text(text.path));
    if (ids.size() <= o.prompt + o.scored) {
      throw std::runtime_error(text.path + ": has " + std::to_string(ids.size()) + " tokens, at least " +
                               std::to_string(o.prompt + o.scored + 1) + " are needed");
    }
    std::fprintf(stderr, "%s\n", text.name.c_str());
    const auto all = quality::compare(pass, exec, methods, ids, o.prompt, o.scored, show_progress);
    const std::string suffix = text.name == "prose" ? "" : text.name;
    quality::print_value(std::cout, "perplexity_dense", suffix, exponential(quality::summarise(all[0].surprise)));
    for (std::size_t m = 0; m < methods.size(); ++m) methods[m]->print(std::cout, *methods[m], suffix, all[m + 1]);
    std::cout << std::flush;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const options o = parse(argc, argv);
    if (o.help) {
      std::cout << help;
      return 0;
    }
    return run(o);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_quality: %s\n", error.what());
    return 2;
  }
}
