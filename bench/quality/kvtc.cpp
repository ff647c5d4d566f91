// Prints how far predictions move when a context's rows have gone through the transform codec, at several sizes: nine windows of three
// kinds of text, real bytes of real streams.

#include "command_line.hpp"
#include "method.hpp"
#include "scores.hpp"
#include "windows.hpp"

#include <calibrate_model.hpp>
#include <file_error.hpp>
#include <gguf.hpp>

#include <kvx/codec/calibration_file.hpp>
#include <kvx/codec/deflate.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

namespace quality {
namespace {

using paper = kvx::kvtc_faithful<kvx::deflate>;
constexpr kvx::deflate token_major{.level = 6, .order = kvx::packing::tokens},
    component_major{.level = 6, .order = kvx::packing::components};

constexpr const char* help = R"(usage: bench_kvtc --model FILE --text NAME=FILE ... --filter STRING --calibration FOLDER
  --text          contexts are drawn from each; texts whose name begins with cal_ are calibrated on, unless FOLDER holds a calibration
  --filter        only values whose name contains it
  --tokens        tokens of calibration (12000)
)";

void print(const std::string& name, double value) { std::cout << name << ' ' << value << std::endl; }

/// Everything that settings share.
struct bench {
  decode_loop::forward_pass& pass;
  const kvx::host& exec;
  std::vector<window> windows;
  std::string filter;

  bool wants(const std::string& name) const { return name.find(filter) != std::string::npos; }

  /// Bytes alone, or KL of all windows printed under the name.
  template <class Codec>
  double ratio(const Codec& codec, const ready_calibration& c, int step, double* error = nullptr) const {
    double raw = 0, written = 0, squares = 0;
    for (const window& w : windows) {
      const coded_rows rows = code_rows(exec, codec, c, w.coded, step, error == nullptr);
      raw += 2 * static_cast<double>(w.coded.keys.size() + w.coded.values.size());
      written += static_cast<double>(rows.bytes);
      squares += rows.key_error + rows.value_error;
    }
    if (error != nullptr) *error = squares / static_cast<double>(windows.size());
    return raw / written;
  }

  /// The step at which all windows together reach a ratio.
  std::int16_t step_of(const ready_calibration& c, double target) const {
    double aim = target;
    std::int16_t step = 0;
    for (int round = 0; round < 3; ++round) {
      step = kvx::step_for_ratio(c.of(), aim);
      const double got = ratio(kvx::kvtc_entropy{}, c, step);
      if (got >= target && got < 1.01 * target) break;
      aim *= 1.003 * target / got;
    }
    return step;
  }

  template <class Codec>
  void score(const std::string& name, const Codec& codec, const ready_calibration& c, int step) const {
    std::vector<double> kl, agrees, means;
    double raw = 0, written = 0, streams = 0, entropy = 0, key_error = 0, value_error = 0;
    for (const window& w : windows) {
      const coded_rows rows = code_rows(exec, codec, c, w.coded, step, false);
      raw += 2 * static_cast<double>(w.coded.keys.size() + w.coded.values.size());
      written += static_cast<double>(rows.bytes);
      streams += 8 * static_cast<double>(rows.stream_bytes);
      entropy += rows.cross_entropy_bits;
      key_error += rows.key_error / static_cast<double>(windows.size());
      value_error += rows.value_error / static_cast<double>(windows.size());
      std::vector<double> of_window;
      score_window(pass, exec, w, rows, of_window, agrees);
      means.push_back(summarise(of_window).mean);
      std::cout << "# " << name << ' ' << w.text << ' ' << w.context << ": KL " << means.back() << std::endl;
      kl.insert(kl.end(), of_window.begin(), of_window.end());
    }
    // Tokens of a window are no independent samples; windows are.
    const summary over_windows = summarise(means);
    print("kl_" + name, over_windows.mean);
    print("kl_" + name + ".se", over_windows.error);
    print("kl_" + name + ".median", summarise(kl).median);
    print("top1_" + name, summarise(agrees).mean);
    print("ratio_" + name, raw / written);
    if (entropy > 0) print("rans_over_cross_entropy_" + name, streams / entropy);
    if (c.of().weighted) print("kl_per_error_" + name, over_windows.mean / weighted_error(c, step));
  }

  /// Weighted squared error a token that the calibration expects of a step.
  static double weighted_error(const ready_calibration& c, int step) {
    const kvx::step_cost cost = kvx::cost_at(c.of(), static_cast<std::int16_t>(step));
    return static_cast<double>(cost.key_error) + static_cast<double>(cost.value_error);
  }
};

/// Reads a calibration, or makes it and keeps it.
std::vector<kvx::calibration> calibrations(decode_loop::forward_pass& pass, const kvx::host& exec, const std::string& folder,
                                           std::span<const std::vector<decode_loop::token_id>> texts, std::size_t tokens,
                                           std::span<const std::string> names, std::span<const decode_loop::calibration_request> requests) {
  std::vector<kvx::calibration> found(names.size());
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string path = folder + "/" + names[i] + ".kvxcal";
    if (!std::filesystem::exists(path) || !kvx::read_calibration(decode_loop::read_file(path), found[i]).ok()) missing.push_back(i);
  }
  if (missing.empty()) return found;
  std::filesystem::create_directories(folder);
  std::vector<decode_loop::calibration_request> wanted;
  for (const std::size_t i : missing) wanted.push_back(requests[i]);
  const auto passages = decode_loop::draw_passages(texts, tokens, 504);
  std::vector<kvx::calibration_report> reports;
  auto made = decode_loop::calibrate_model(pass, exec, passages, wanted, reports, [](std::string_view what, double done) {
    std::fprintf(stderr, "%.*s %.0f %%\n", static_cast<int>(what.size()), what.data(), 100 * done);
  });
  for (std::size_t i = 0; i < missing.size(); ++i) {
    const auto bytes = kvx::write_calibration(made[i]);
    std::ofstream(folder + "/" + names[missing[i]] + ".kvxcal", std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    std::cout << "# " << names[missing[i]] << '\n';
    std::string text = kvx::report_text(reports[i], made[i]), line;
    for (const char x : text) {
      if (x != '\n') line += x;
      if (x == '\n') std::cout << "# " << std::exchange(line, "") << '\n';
    }
    found[missing[i]] = std::move(made[i]);
  }
  return found;
}

int run(options o, const std::string& folder, std::size_t tokens) {
  const kvx::host exec{.threads = static_cast<int>(o.threads)};
  const decode_loop::gguf file(o.model);
  const decode_loop::model weights(file);
  const decode_loop::tokenizer words(file);
  decode_loop::forward_pass pass(weights, exec, 512);
  std::vector<std::vector<decode_loop::token_id>> texts;
  std::vector<named_text> scored;
  for (const named_text& t : o.texts) {
    if (t.name.starts_with("cal_")) {
      texts.push_back(read_tokens(t, words, 1));
    } else {
      scored.push_back(t);
    }
  }
  bench b{pass, exec, {}, o.filter};
  const std::vector<std::pair<std::string, double>> weighted{{"weighted_17x", 17.5}, {"weighted_35x", 35}};
  const std::vector<std::pair<std::string, double>> predicted{{"predicted_20x", 20}, {"predicted_27x", 27}, {"predicted_35x", 35}};
  const auto any = [&](const auto& settings) {
    return std::any_of(settings.begin(), settings.end(),
                       [&](const auto& s) { return b.wants("kl_" + s.first) || b.wants("top1_" + s.first); });
  };
  const bool paper_too =
      b.wants("kl_faithful16") || b.wants("deflate_factor") || b.wants("rans_or_major_factor") || b.wants("entropy_first_bits_saved");

  const auto layers = static_cast<int>(weights.shape.layers), heads = static_cast<int>(weights.shape.kv_heads);
  std::vector<std::string> names;
  std::vector<decode_loop::calibration_request> requests;
  const auto ask = [&](bool wanted, const std::string& name, bool weigh, bool predict, bool plan) {
    if (!wanted) return;
    decode_loop::calibration_request r;
    r.weighted = weigh;
    r.predictor = predict;
    if (plan) {
      r.options.spans = kvx::whole_model(layers, heads);
      r.options.plan_ratio = 16;
      r.options.finest_ratio = 0;
      r.options.rank = static_cast<std::int64_t>(weights.shape.layers * weights.shape.kv_heads * weights.shape.head_dim) / 3;
    }
    names.push_back(name);
    requests.push_back(r);
  };
  ask(any(weighted), "weighted", true, false, false);
  ask(any(predicted), "predicted", true, true, false);
  ask(paper_too, "faithful", false, false, true);
  if (names.empty()) throw std::runtime_error("--filter is '" + o.filter + "', which no name contains");
  const auto made = calibrations(pass, exec, folder, texts, tokens, names, requests);
  b.windows = run_windows(pass, exec, scored, words);

  for (std::size_t i = 0; i < names.size(); ++i) {
    const ready_calibration c(made[i]);
    print("calibration_bytes_" + names[i], static_cast<double>(made[i].bytes()));
    if (names[i] != "faithful") {
      for (const auto& [name, ratio] : names[i] == "weighted" ? weighted : predicted) {
        if (b.wants("kl_" + name) || b.wants("top1_" + name)) b.score(name, kvx::kvtc_entropy{}, c, b.step_of(c, ratio));
      }
      continue;
    }
    const paper codec{{}, {}, token_major};
    if (b.wants("kl_faithful16")) b.score("faithful16", codec, c, 0);
    double error = 0;
    const double fixed = b.ratio(kvx::kvtc_faithful<kvx::fixed_width>{}, c, 0), tokens_first = b.ratio(codec, c, 0, &error);
    const double components_first = b.ratio(paper{{}, {}, component_major}, c, 0), coded = b.ratio(kvx::kvtc_faithful<kvx::rans>{}, c, 0);
    print("deflate_factor", tokens_first / fixed);
    print("rans_or_major_factor", std::max(components_first, coded) / fixed);
    print("rans_factor", coded / fixed);
    // The step of equal squared error: what the calibration expects, corrected by what is measured.
    double aim = error, saved = 0;
    for (int round = 0; round < 3; ++round) {
      double off = 0;
      const double entropy_first = b.ratio(kvx::kvtc_entropy{}, c, kvx::step_for_error(made[i], aim), &off);
      saved = 1 - tokens_first / entropy_first;
      print("# entropy-first at squared error over the faithful mode's " + std::to_string(off / error) + ", bits saved", saved);
      if (std::abs(off / error - 1) < .005) break;
      aim *= error / off;
    }
    print("entropy_first_bits_saved", saved);
  }
  return 0;
}

}  // namespace
}  // namespace quality

int main(int argc, char** argv) {
  try {
    std::size_t tokens = 12000;
    std::string folder = "build/calibration";
    std::vector<char*> rest;
    for (int i = 0; i < argc; ++i) {
      if (std::string(argv[i]) == "--calibration" && i + 1 < argc) {
        folder = argv[++i];
      } else {
        rest.push_back(argv[i]);
      }
    }
    const auto o = quality::parse(static_cast<int>(rest.size()), rest.data(), {{"--tokens", &tokens, 1000, 1 << 24}});
    if (o.help) {
      std::cout << quality::help;
      return 0;
    }
    return quality::run(o, folder, tokens);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_kvtc: %s\n", error.what());
    return 2;
  }
}
