#pragma once
// What a run shows: a progress bar while it works, and a table at the end, as text and as CSV.

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace decode_loop {

/// Columns of text; the first is aligned to the left, the others to the right.
struct table {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;

  void print(std::FILE* to) const;

  /// errors      file_error where the file cannot be written
  void write_csv(const std::string& path) const;
};

/// A number with so many digits after the point; in scientific form where that would print zero.
std::string number(double value, int digits);

/// Tokens done, tokens a second and the time left, on stderr: a bar on a terminal, a line at each quarter elsewhere.
class progress {
 public:
  progress(std::string_view what, std::size_t total);
  void operator()(std::size_t done);

 private:
  std::string what_;
  std::size_t total_;
  std::size_t quarter_ = 0;                                             // of the last line printed elsewhere
  bool terminal_;
  std::chrono::steady_clock::time_point start_, drawn_;
};

}  // namespace decode_loop
