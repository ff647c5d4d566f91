#include "command_line.hpp"

#include <unistd.h>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace quality {
namespace {

std::size_t number(const number_option& option, const std::string& text) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < option.low || value > option.high) {
    throw std::runtime_error(std::string(option.name) + " is '" + text + "', allowed are " + std::to_string(option.low) + " to " +
                             std::to_string(option.high));
  }
  return value;
}

named_text text_of(const std::string& value) {
  const std::size_t equals = value.find('=');
  if (equals == std::string::npos || equals == 0) throw std::runtime_error("--text is '" + value + "', allowed is NAME=FILE");
  return {value.substr(0, equals), value.substr(equals + 1)};
}

}  // namespace

options parse(int argc, char** argv, std::initializer_list<number_option> own) {
  options o;
  std::vector<number_option> numbers(own);
  numbers.push_back({"--chunk", &o.chunk, 1, 1 << 16});
  numbers.push_back({"--threads", &o.threads, 1, 1024});
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
    const auto found = std::find_if(numbers.begin(), numbers.end(), [&](const number_option& n) { return n.name == name; });
    if (found != numbers.end()) {
      *found->value = number(*found, value);
    } else if (name == "--model") {
      o.model = value;
    } else if (name == "--text") {
      o.texts.push_back(text_of(value));
    } else if (name == "--filter") {
      o.filter = value;
    } else if (name == "--calibration") {
      o.calibration = value;
    } else {
      throw std::runtime_error("'" + name + "' is no option; --help lists them");
    }
  }
  if (!o.list && (o.model.empty() || o.texts.empty())) throw std::runtime_error("--model and --text are needed; --help says more");
  return o;
}

std::vector<decode_loop::token_id> read_tokens(const named_text& text, const decode_loop::tokenizer& tokens, std::size_t least) {
  std::ifstream in(text.path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  if (!in && bytes.empty()) throw std::runtime_error(text.path + ": cannot be read");
  auto ids = tokens.encode(bytes);
  if (ids.size() < least) {
    throw std::runtime_error(text.path + ": has " + std::to_string(ids.size()) + " tokens, at least " + std::to_string(least) +
                             " are needed");
  }
  return ids;
}

void show_progress(const char* what, std::size_t done, std::size_t of) {
  static const bool terminal = isatty(STDERR_FILENO) != 0;
  static std::size_t shown = 0;
  const std::size_t tenth = 10 * done / of;
  if (terminal) {
    std::fprintf(stderr, "\r%s %zu of %zu%s", what, done, of, done == of ? "\n" : "");
  } else if (tenth > shown) {
    std::fprintf(stderr, "%s %zu of %zu\n", what, done, of);
  }
  shown = done == of ? 0 : tenth;
}

}  // namespace quality
