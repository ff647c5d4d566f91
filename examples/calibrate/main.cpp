// Calibrates a model's cache codec from text files: a forward pass over passages of them, then bases, scales and the map from tokens.

#include "calibrate_model.hpp"

#include "drift_on.hpp"
#include "file_error.hpp"
#include "model.hpp"
#include "passage_observer.hpp"
#include "report.hpp"

#include <kvx/codec/calibration_file.hpp>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace decode_loop {
namespace {

constexpr const char* help = R"(usage: calibrate --model FILE --out FILE [options] TEXT...

  TEXT...            text files; passages are drawn evenly from all of them
  --tokens N         tokens in all (12000)
  --passage N        tokens of a passage (504): many short ones see more kinds of text than few long ones
  --attended N       tokens of a passage of each text whose attention gives the model's sensitivity (4096): as long as what will be stored;
                     0: that of the short ones
  --blocks N         blocks of layers that have a basis each (3); 1: the whole model; as many as layers: each alone
  --heads A-B        KV heads A to B alone, those that one rank of a tensor-parallel model holds (all)
  --rank N           components of a basis (what 12 times smaller needs)
  --no-weights       leave out the model's sensitivity
  --no-predictor     leave out the map from tokens
  --faithful R,...   bit plans for these nominal ratios: one basis for the whole model, no weights, no predictor; of several ratios each
                     file's name has its own before the extension
  --threads N        (all cores)
  --drift FILE       instead: how far the texts' rows are from those that FILE was calibrated on; --tokens of them (2000)
)";

struct arguments {
  std::string model, out, drift;
  std::vector<std::string> texts;
  std::int64_t tokens = 0, passage = 504, attended = 4096, blocks = 3, rank = 0, threads = 0;
  std::int64_t first_head = -1, last_head = -1;
  std::vector<double> faithful;
  bool weights = true, predictor = true;
};

/// errors      file_error for an unknown option or a value that is missing or no number in its range
arguments parse(int count, char** words) {
  arguments a;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const auto value = [&]() -> std::string {
      if (++i >= count) throw file_error(word + " needs a value");
      return words[i];
    };
    const auto integer = [&](std::int64_t low, std::int64_t high) {
      const std::string text = value();
      char* end = nullptr;
      const long long n = std::strtoll(text.c_str(), &end, 10);
      if (end == text.c_str() || *end != 0 || n < low || n > high) {
        throw file_error(word + " " + text + ": a whole number from " + std::to_string(low) + " to " + std::to_string(high));
      }
      return static_cast<std::int64_t>(n);
    };
    if (word == "--model") {
      a.model = value();
    } else if (word == "--out") {
      a.out = value();
    } else if (word == "--tokens") {
      a.tokens = integer(64, 1 << 30);
    } else if (word == "--passage") {
      a.passage = integer(64, 1 << 20);
    } else if (word == "--attended") {
      a.attended = integer(0, 1 << 20);
    } else if (word == "--blocks") {
      a.blocks = integer(1, 1 << 16);
    } else if (word == "--rank") {
      a.rank = integer(0, 1 << 20);
    } else if (word == "--threads") {
      a.threads = integer(1, 4096);
    } else if (word == "--drift") {
      a.drift = value();
    } else if (word == "--heads") {
      const std::string heads = value();
      int end = 0;
      if (std::sscanf(heads.c_str(), "%" SCNd64 "-%" SCNd64 "%n", &a.first_head, &a.last_head, &end) != 2 ||
          static_cast<std::size_t>(end) != heads.size() || a.first_head < 0 || a.last_head < a.first_head) {
        throw file_error("--heads " + heads + ": two heads, 0-1");
      }
    } else if (word == "--faithful") {
      std::string ratios = value();
      for (std::size_t end = 0; !ratios.empty(); ratios.erase(0, std::min(end, ratios.size() - 1) + 1)) {
        end = ratios.find(',');
        const double ratio = std::atof(ratios.substr(0, end).c_str());
        if (!(ratio >= 1 && ratio <= 64)) throw file_error("--faithful " + ratios + ": ratios from 1 to 64, with commas between them");
        a.faithful.push_back(ratio);
      }
    } else if (word == "--no-weights") {
      a.weights = false;
    } else if (word == "--no-predictor") {
      a.predictor = false;
    } else if (word.starts_with("--")) {
      throw file_error("unknown option " + word);
    } else {
      a.texts.push_back(word);
    }
  }
  if (a.model.empty() || (a.out.empty() && a.drift.empty()) || a.texts.empty()) {
    throw file_error("--model, --out (or --drift) and a text are needed; see --help");
  }
  if (a.tokens == 0) a.tokens = a.drift.empty() ? 12000 : 2000;
  return a;
}

/// One line a stage on stderr, with what is done of it.
class stages {
 public:
  void operator()(std::string_view what, double done) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    if (what != last_ && !last_.empty()) std::fputc('\n', stderr);
    std::fprintf(stderr, "\r%-24.*s %3.0f %%  %6.1f s", static_cast<int>(what.size()), what.data(), 100 * done, seconds);
    if (done >= 1 && what == "done") std::fputc('\n', stderr);
    last_ = what;
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::string last_;
};

/// The basis spans that were asked for.
///
/// errors      file_error: heads that the model does not have
std::vector<kvx::feature_span> spans_of(const arguments& a, const model_shape& s) {
  const auto layers = static_cast<int>(s.layers), heads = static_cast<int>(s.kv_heads);
  const auto blocks = !a.faithful.empty() ? 1 : std::min<std::int64_t>(a.blocks, layers);
  auto spans = kvx::blocks_of_layers(layers, heads, static_cast<int>(blocks));
  if (a.first_head < 0) return spans;
  if (a.last_head >= heads) throw file_error("--heads: the model has KV heads 0 to " + std::to_string(heads - 1));
  return kvx::with_heads(std::move(spans), static_cast<int>(a.first_head), static_cast<int>(a.last_head - a.first_head + 1));
}

/// Where the calibration of a number goes.
std::string file_of(const arguments& a, std::size_t number) {
  if (a.faithful.size() < 2) return a.out;
  std::filesystem::path path = a.out;
  char ratio[16];
  std::snprintf(ratio, sizeof ratio, "%g", a.faithful[number]);
  return path.replace_filename(path.stem().string() + ratio + path.extension().string()).string();
}

int run(const arguments& a) {
  const unsigned cores = std::max(std::thread::hardware_concurrency(), 1U);
  const kvx::host exec{.threads = a.threads > 0 ? static_cast<int>(a.threads) : static_cast<int>(cores)};
  kvx::calibration judged;
  if (a.drift.empty()) {
    const bool writes = std::ofstream(file_of(a, 0), std::ios::binary | std::ios::app).good();  // refused now, not after minutes
    if (!writes) throw file_error(file_of(a, 0) + ": cannot be written");
  } else if (const kvx::status s = kvx::read_calibration(read_file(a.drift), judged); !s.ok()) {
    throw file_error(a.drift + ": " + kvx::message(s));
  }
  const gguf file(a.model);
  const tokenizer words(file);
  const model weights(file);
  std::vector<std::vector<token_id>> texts;
  for (const std::string& path : a.texts) {
    const auto bytes = read_file(path);
    texts.push_back(words.encode({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  }
  const auto passages =
      draw_passages(texts, static_cast<std::size_t>(a.tokens), std::min(static_cast<std::size_t>(a.passage), weights.shape.context));
  if (passages.empty()) throw file_error("the texts hold no tokens");

  forward_pass pass(weights, exec, 512);
  if (!a.drift.empty()) {
    if (judged.shape != rows_of(weights.shape)) throw file_error(a.drift + ": calibrated for a model of another shape");
    const auto drift = drift_on(pass, exec, passages, judged, stages());
    std::printf("\n%s", kvx::drift_text(drift, judged).c_str());
    return 0;
  }

  calibration_request request;
  request.weighted = a.weights && a.faithful.empty();
  request.predictor = a.predictor && a.faithful.empty();
  request.options.rank = a.rank;
  if (!a.faithful.empty()) {
    request.options.plan_ratio = a.faithful.front();
    request.more_plans.assign(a.faithful.begin() + 1, a.faithful.end());
    request.options.finest_ratio = 0;
  }
  request.options.spans = spans_of(a, weights.shape);
  std::vector<kvx::calibration_report> reports;
  const std::size_t longer = std::min(static_cast<std::size_t>(a.attended), weights.shape.context);
  const auto attended = longer > 0 ? draw_passages(texts, longer * texts.size(), longer) : std::vector<std::vector<token_id>>();
  const auto fitted = calibrate_model(pass, exec, {passages, attended}, std::span(&request, 1), reports, stages());
  for (std::size_t i = 0; i < fitted.size(); ++i) {
    const std::string path = file_of(a, i);
    const auto bytes = kvx::write_calibration(fitted[i]);
    std::ofstream file_out(path, std::ios::binary);
    file_out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (!file_out.flush()) throw file_error(path + ": cannot be written");
    if (i == 0) std::printf("\n%s", kvx::report_text(reports[i], fitted[i]).c_str());
    std::printf("%s: %.1f MB\n", path.c_str(), static_cast<double>(bytes.size()) / 1e6);
  }
  return 0;
}

}  // namespace
}  // namespace decode_loop

int main(int count, char** words) {
  for (int i = 1; i < count; ++i) {
    if (std::strcmp(words[i], "--help") == 0) {
      std::fputs(decode_loop::help, stdout);
      return 0;
    }
  }
  try {
    return decode_loop::run(decode_loop::parse(count, words));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "calibrate: %s\n", error.what());
    return 1;
  }
}
