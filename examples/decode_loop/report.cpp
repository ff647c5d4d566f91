#include "report.hpp"

#include "file_error.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>

namespace decode_loop {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// A field as RFC 4180 wants it.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + "\"";
}

}  // namespace

std::string number(double value, int digits) {
  char text[64];
  const bool vanishes = value != 0 && std::fabs(value) < 0.5 * std::pow(10.0, -digits);
  if (vanishes) {
    std::snprintf(text, sizeof(text), "%.1e", value);
  } else {
    std::snprintf(text, sizeof(text), "%.*f", digits, value);
  }
  return text;
}

void table::print(std::FILE* to) const {
  std::vector<std::size_t> widths(columns.size());
  for (std::size_t c = 0; c < columns.size(); ++c) {
    widths[c] = columns[c].size();
    for (const auto& row : rows) widths[c] = std::max(widths[c], row[c].size());
  }
  const auto line = [&](const std::vector<std::string>& row) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - row[c].size(), ' ');
      std::fprintf(to, "%s%s", c == 0 ? row[c].c_str() : ("  " + padding).c_str(), c == 0 ? padding.c_str() : row[c].c_str());
    }
    std::fputc('\n', to);
  };
  line(columns);
  for (const auto& row : rows) line(row);
  std::fflush(to);
}

void table::write_csv(const std::string& path) const {
  std::ofstream out(path);
  const auto line = [&](const std::vector<std::string>& row) {
    for (std::size_t c = 0; c < row.size(); ++c) out << (c == 0 ? "" : ",") << csv_field(row[c]);
    out << '\n';
  };
  line(columns);
  for (const auto& row : rows) line(row);
  out.flush();
  if (!out) throw file_error(path + ": cannot be written");
}

progress::progress(std::string_view what, std::size_t total)
    : what_(what), total_(total), terminal_(isatty(STDERR_FILENO) == 1), start_(std::chrono::steady_clock::now()), drawn_(start_) {}

void progress::operator()(std::size_t done) {
  const double elapsed = seconds_since(start_);
  const double speed = static_cast<double>(done) / std::max(elapsed, 1e-9);
  const double left = static_cast<double>(total_ - done) / std::max(speed, 1e-9);
  if (terminal_) {
    if (done < total_ && seconds_since(drawn_) < 0.1) return;
    drawn_ = std::chrono::steady_clock::now();
    constexpr std::size_t width = 30;
    const std::size_t filled = width * done / std::max<std::size_t>(total_, 1);
    const std::string bar = std::string(filled, '#') + std::string(width - filled, '.');
    std::fprintf(stderr, "\r%-18s [%s] %zu/%zu  %.0f tokens/s  %.0f s left \033[K", what_.c_str(), bar.c_str(), done, total_, speed, left);
    if (done == total_) std::fprintf(stderr, "\n");
  } else if (const std::size_t quarter = 4 * done / std::max<std::size_t>(total_, 1); quarter > quarter_) {
    quarter_ = quarter;
    std::fprintf(stderr, "%s: %zu of %zu tokens, %.0f tokens/s, %.0f s left\n", what_.c_str(), done, total_, speed, left);
  }
}

}  // namespace decode_loop
