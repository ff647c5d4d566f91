#pragma once
// What the quality programs take from their command lines, and how they report on the way.

#include <tokenizer.hpp>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <thread>
#include <vector>

namespace quality {

struct named_text {
  std::string name;
  std::string path;

  /// What is printed behind the names of its values: nothing for prose.
  std::string suffix() const { return name == "prose" ? "" : name; }
};

struct options {
  std::string model;
  std::vector<named_text> texts;
  std::string filter;
  std::string calibration = "build/calibration";                        // folder of calibrations of the transform codec
  std::size_t chunk = 512;
  std::size_t threads = std::max(1U, std::thread::hardware_concurrency());
  bool list = false;
  bool help = false;
};

/// An option of one program alone: a number from `low` to `high`.
struct number_option {
  const char* name;
  std::size_t* value;
  std::size_t low;
  std::size_t high;
};

/// errors      std::runtime_error that names the option: unknown, without a value, out of range, or needed and not given
options parse(int argc, char** argv, std::initializer_list<number_option> own);

/// The tokens of a text; std::runtime_error where it cannot be read or has fewer than `least`.
std::vector<decode_loop::token_id> read_tokens(const named_text& text, const decode_loop::tokenizer& tokens, std::size_t least);

/// Ten lines a stage on standard error, or one that renews itself on a terminal.
void show_progress(const char* what, std::size_t done, std::size_t of);

}  // namespace quality
