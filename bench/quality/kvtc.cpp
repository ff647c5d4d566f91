// Prints how far predictions move when a context's rows have gone through the transform codec, at several sizes: nine windows of three
// kinds of text, real bytes of real streams.

#include "command_line.hpp"
#include "kvtc_bench.hpp"
#include "kvtc_calibrations.hpp"
#include "kvtc_settings.hpp"
#include "windows.hpp"

#include <gguf.hpp>

#include <kvx/codec/deflate.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace quality {
namespace {

using paper = kvx::kvtc_faithful<kvx::deflate>;
constexpr kvx::deflate token_major{.level = 6, .order = kvx::packing::tokens},
    component_major{.level = 6, .order = kvx::packing::components};

constexpr const char* help = R"(usage: bench_kvtc --model FILE --text NAME=FILE ... --calibration FOLDER [--filter STRING] [--list]
  --text          contexts are drawn from each; texts whose name begins with cal_ are calibrated on, unless FOLDER holds a calibration
  --filter        only values whose name contains it; sweep_: the other points of the curves
  --tokens        tokens of calibration (12000)
  --list          the settings that a filter picks, and nothing else
)";

/// What is computed from sizes alone, of the paper's mode at nominal 16 times.
constexpr const char* size_names[] = {"deflate_factor", "rans_or_major_factor", "rans_factor", "entropy_first_bits_saved"};

bool wants_sizes(const std::string& filter) {
  return std::any_of(std::begin(size_names), std::end(size_names),
                     [&](const std::string& name) { return name.find(filter) != std::string::npos; });
}

/// The paper's entropy coder beside others on the same symbols, and one step beside the bit plan at equal squared error.
void print_sizes(const kvtc_bench& b, const ready_calibration& c) {
  const coded_windows tokens_first = b.code(paper{{}, {}, token_major}, c, 0, false);
  const double fixed = b.code(kvx::kvtc_faithful<kvx::fixed_width>{}, c, 0, true).ratio();
  const double components_first = b.code(paper{{}, {}, component_major}, c, 0, true).ratio();
  const double coded = b.code(kvx::kvtc_faithful<kvx::rans>{}, c, 0, true).ratio();
  std::cout << "# faithful16: fixed width " << fixed << "x, DEFLATE of tokens " << tokens_first.ratio() << "x, of components "
            << components_first << "x, rANS " << coded << "x\n";
  print_number("deflate_factor", tokens_first.ratio() / fixed);
  print_number("rans_or_major_factor", std::max(components_first, coded) / fixed);
  print_number("rans_factor", coded / fixed);
  double aim = tokens_first.error, saved = 0;
  for (int round = 0; round < 3; ++round) {
    const coded_windows ours = b.code(kvx::kvtc_entropy{}, c, kvx::step_for_error(c.of(), aim), false);
    saved = 1 - tokens_first.ratio() / ours.ratio();
    std::cout << "# entropy-first at " << ours.error / tokens_first.error << " of that error: " << ours.ratio() << "x\n";
    if (std::abs(ours.error / tokens_first.error - 1) < .005) break;
    aim *= tokens_first.error / ours.error;
  }
  print_number("entropy_first_bits_saved", saved);
}

void print_setting(kvtc_bench& b, const kvtc_setting& s, const ready_calibration* c) {
  const std::string name(s.name);
  if (s.how == kvtc_setting::method::groups) {
    const auto dim = static_cast<std::int64_t>(b.pass.weights().shape.head_dim);
    b.score(name, [&](const window& w) { return round_rows(s.groups, dim, w.coded); });
  } else if (s.how == kvtc_setting::method::faithful) {
    b.score(name, [&](const window& w) { return code_rows(b.exec, paper{{}, {}, token_major}, *c, w.coded, 0, false); });
  } else {
    const std::int16_t step = b.step_of(*c, s.ratio);
    if (c->of().weighted) print_number("kl_expected_" + name, kvx::expected_kl(kvx::cost_at(c->of(), step)));
    b.score(name, [&](const window& w) { return code_rows(b.exec, kvx::kvtc_entropy{}, *c, w.coded, step, false); });
  }
}

int run(const options& o, std::size_t tokens) {
  std::vector<const kvtc_setting*> settings;
  for (const kvtc_setting& s : kvtc_settings) {
    if (s.wanted(o.filter)) settings.push_back(&s);
  }
  const bool sizes = wants_sizes(o.filter);
  if (o.list) {
    for (const kvtc_setting* s : settings) std::cout << s->name << '\n';
    for (const char* name : size_names) std::cout << (sizes ? std::string(name) + '\n' : std::string());
    return 0;
  }
  if (settings.empty() && !sizes) throw std::runtime_error("--filter is '" + o.filter + "', which no name contains");

  const kvx::host exec{.threads = static_cast<int>(o.threads)};
  const decode_loop::gguf file(o.model);
  const decode_loop::model weights(file);
  const decode_loop::tokenizer words(file);
  decode_loop::forward_pass pass(weights, exec, 512);
  std::vector<std::vector<decode_loop::token_id>> calibrated_on;
  std::vector<named_text> scored;
  for (const named_text& t : o.texts) {
    if (t.name.starts_with("cal_")) {
      calibrated_on.push_back(read_tokens(t, words, 1));
    } else {
      scored.push_back(t);
    }
  }
  std::vector<std::string> names;
  if (sizes) names.emplace_back("faithful16");
  for (const kvtc_setting* s : settings) {
    const std::string name(s->calibration);
    if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  const auto made = kvtc_calibrations_of(pass, exec, o.calibration, calibrated_on, tokens, names);
  kvtc_bench b{pass, exec, run_windows(pass, exec, scored, words)};
  std::vector<double> surprise;
  for (const window& w : b.windows) {
    const auto of_window = dense_surprise(w);
    surprise.insert(surprise.end(), of_window.begin(), of_window.end());
  }
  print_number("perplexity_dense_windows", exponential(summarise(surprise)).mean);
  for (const auto& c : made) print_number("calibration_bytes_" + c->name, static_cast<double>(c->calibration.bytes()));
  const auto ready = [&](std::string_view name) -> const ready_calibration* {
    for (const auto& c : made) {
      if (c->name == name) return &c->ready;
    }
    return nullptr;
  };
  if (sizes) print_sizes(b, *ready("faithful16"));
  for (const kvtc_setting* s : settings) print_setting(b, *s, ready(s->calibration));
  if (b.worst_stream > 0) print_number("rans_over_cross_entropy", b.worst_stream);
  return 0;
}

}  // namespace
}  // namespace quality

int main(int argc, char** argv) {
  try {
    std::size_t tokens = 12000;
    const auto o = quality::parse(argc, argv, {{"--tokens", &tokens, 1000, 1 << 24}});
    if (o.help) {
      std::cout << quality::help;
      return 0;
    }
    return quality::run(o, tokens);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_kvtc: %s\n", error.what());
    return 2;
  }
}
