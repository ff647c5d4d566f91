#pragma once
// The command line of the decode loop.

#include <cstdint>
#include <stdexcept>
#include <string>

namespace decode_loop {

/// A wrong argument: one line that names it and what is allowed.
struct option_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct options {
  std::string model;
  std::string text;
  std::string prompt;
  std::string cache;
  std::string backend = "host";
  std::string codecs;
  std::string csv;
  std::string dump_trace;
  std::string replay;
  bool all = false;
  bool audit = false;
  bool bench_prompt = false;
  bool dump_float = false;
  bool dump_no_k0 = false;
  bool help = false;
  std::int64_t keep = 256;
  std::int64_t context = 0;                                             // 0: 4,096 for a document, 2,048 for --prompt
  std::int64_t scored = 128;
  std::int64_t tokens = 128;
  std::int64_t threads = 0;                                             // 0: all cores
  std::int64_t seed = 0;
  std::int64_t dump_layer = -1;                                         // -1: all
  std::int64_t dump_queries = -1;                                       // -1: all
  double temperature = 0;
};

/// errors      option_error for an unknown option, a missing or malformed value, or options that exclude each other
options parse_options(int count, const char* const* arguments);

/// What --help prints: every option, and the names of the cache types.
std::string help_text();

}  // namespace decode_loop
