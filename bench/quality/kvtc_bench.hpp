#pragma once
// Sizes and predictions of all windows under one setting of the codec.

#include "kvtc_settings.hpp"
#include "method.hpp"
#include "scores.hpp"
#include "windows.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

namespace quality {

inline void print_number(const std::string& name, double value) { std::cout << name << ' ' << value << std::endl; }

/// Bytes of all windows, and what else coding them shows.
///
/// error       squared, weighted, of K and V, a token, mean over windows; 0 where only bytes were asked for
struct coded_windows {
  double raw = 0, written = 0;
  double error = 0;
  double stream_bits = 0, entropy_bits = 0;

  void add(const window& w, const coded_rows& rows, std::size_t windows) {
    raw += 2 * static_cast<double>(w.coded.keys.size() + w.coded.values.size());
    written += static_cast<double>(rows.bytes);
    error += (rows.key_error + rows.value_error) / static_cast<double>(windows);
    stream_bits += 8 * static_cast<double>(rows.stream_bytes);
    entropy_bits += rows.cross_entropy_bits;
  }
  double ratio() const { return raw / written; }
};

/// Everything that settings share.
struct kvtc_bench {
  decode_loop::forward_pass& pass;
  const kvx::host& exec;
  std::vector<window> windows;
  double worst_stream = 0;                                              // bits written over cross entropy, of the settings so far

  template <class Codec>
  coded_windows code(const Codec& codec, const ready_calibration& c, int step, bool bytes_only) const {
    coded_windows sum;
    for (const window& w : windows) sum.add(w, code_rows(exec, codec, c, w.coded, step, bytes_only), windows.size());
    return sum;
  }

  /// The step at which all windows together reach a ratio: what the calibration expects, corrected by what is measured.
  std::int16_t step_of(const ready_calibration& c, double target) const {
    double aim = target;
    std::int16_t step = 0;
    for (int round = 0; round < 3; ++round) {
      step = kvx::step_for_ratio(c.of(), aim);
      const double got = code(kvx::kvtc_entropy{}, c, step, true).ratio();
      if (got >= target && got < 1.01 * target) break;
      aim *= 1.003 * target / got;
    }
    return step;
  }

  /// Prints what the scored tokens of all windows show of rows made by coded(window).
  template <class Coded>
  void score(const std::string& name, const Coded& coded) {
    coded_windows sum;
    scores tokens;
    std::vector<double> means, of_text;
    for (std::size_t i = 0; i < windows.size(); ++i) {
      const window& w = windows[i];
      const coded_rows rows = coded(w);
      sum.add(w, rows, windows.size());
      const scores got = score_window(pass, exec, w, rows);
      tokens.kl.insert(tokens.kl.end(), got.kl.begin(), got.kl.end());
      tokens.agrees.insert(tokens.agrees.end(), got.agrees.begin(), got.agrees.end());
      tokens.surprise.insert(tokens.surprise.end(), got.surprise.begin(), got.surprise.end());
      means.push_back(summarise(got.kl).mean);
      of_text.push_back(means.back());
      if (i + 1 == windows.size() || windows[i + 1].text != w.text) {
        print_number("kl_" + name + ".of_" + w.text, summarise(of_text).mean);
        of_text.clear();
      }
    }
    const summary over_windows = summarise(means);                      // tokens of a window are no independent samples; windows are
    print_number("kl_" + name, over_windows.mean);
    print_number("kl_" + name + ".se", over_windows.error);
    print_number("kl_" + name + ".median", summarise(tokens.kl).median);
    print_value(std::cout, "top1_" + name, "", summarise(tokens.agrees));
    print_value(std::cout, "perplexity_" + name, "", exponential(summarise(tokens.surprise)));
    print_number("ratio_" + name, sum.ratio());
    if (sum.entropy_bits > 0) worst_stream = std::max(worst_stream, sum.stream_bits / sum.entropy_bits);
  }
};

}  // namespace quality
