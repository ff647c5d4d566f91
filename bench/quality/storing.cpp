// Prints what a prompt costs as a file: its size against its rows, how far the predictions after it move, and the time to save and restore
// it against the time to run it.

#include "command_line.hpp"
#include "method.hpp"
#include "scores.hpp"

#include <caches.hpp>
#include <comparison.hpp>
#include <divergence.hpp>
#include <file_error.hpp>
#include <forward.hpp>
#include <gguf.hpp>
#include <stored_caches.hpp>

#include <kvx/core/checksum.hpp>

#include "../support/timing.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace quality {
namespace {

using decode_loop::token_id;

constexpr const char* help = R"(usage: bench_storing --model FILE --text NAME=FILE ... --calibration FOLDER [--filter STRING] [--list]
  --calibration   holds predicted.kvxcal: bench/kvtc.sh makes it
  --filter        only values whose name contains it
  --list          the values that a filter picks, and nothing else
)";

/// A whole file after a context: the newest rows raw that `save` leaves so, coded ones at the setting of a cache's line.
struct end_to_end {
  const char* name;
  const char* cache;
  std::size_t context;
};
constexpr end_to_end settings[] = {
    {"2k_end_to_end", "kvtc-20x", 2048}, {"8k_end_to_end", "kvtc-27x", 8064}, {"8k_end_to_end_35x", "kvtc-35x", 8064}};
constexpr const char* speeds[] = {"restore_vs_prefill", "check_cost", "save_4096_seconds", "save_4096_peak_mb"};
constexpr std::size_t scored = 128;

bool contains(const std::string& name, const std::string& filter) { return name.find(filter) != std::string::npos; }

struct storing_bench {
  decode_loop::forward_pass& pass;
  const kvx::host& exec;
  const decode_loop::codec_files& codecs;

  std::unique_ptr<decode_loop::any_cache> make(const char* name, std::size_t tokens) const {
    auto request = decode_loop::request_for(pass.weights().shape, tokens, pass.most_tokens(), 0);
    request.codecs = &codecs;
    return decode_loop::find_cache(name)->make(exec, request);
  }
  double row_bytes(std::size_t tokens) const {
    const decode_loop::model_shape& s = pass.weights().shape;
    return 4 * static_cast<double>(tokens * s.layers * s.kv_heads * s.head_dim);  // K and V in 16 bits
  }

  /// One text: KL of the tokens behind the context to the full cache in fp32, and the file's bytes.
  std::int64_t follow(const end_to_end& setting, std::span<const token_id> ids, std::vector<double>& kl_of) const {
    const auto reference = make("full-float", ids.size()), stored = make(setting.cache, ids.size());
    decode_loop::any_cache* const copies[] = {stored.get()};
    decode_loop::run_prompt(pass, *reference, ids.first(setting.context), {.scored = 0, .copies = copies});
    const auto cost = stored->store(ids.first(setting.context));
    const std::size_t vocabulary = pass.weights().shape.vocabulary;
    const auto said = decode_loop::forward(pass, *reference, ids.subspan(setting.context), scored);
    const std::vector<float> dense(said.begin(), said.end());
    const auto logits = decode_loop::forward(pass, *stored, ids.subspan(setting.context), scored);
    for (std::size_t t = 0; t < scored; ++t) {
      kl_of.push_back(kl(decode_loop::log_probabilities(std::span(dense).subspan(t * vocabulary, vocabulary)),
                         decode_loop::log_probabilities(logits.subspan(t * vocabulary, vocabulary))));
    }
    return cost->bytes;
  }

  void print_end_to_end(const end_to_end& setting, std::span<const std::vector<token_id>> texts) const {
    std::vector<double> all, means;
    double raw = 0, written = 0;
    for (const auto& ids : texts) {
      std::vector<double> of_text;
      written += static_cast<double>(follow(setting, std::span(ids).first(setting.context + scored), of_text));
      raw += row_bytes(setting.context);
      means.push_back(summarise(of_text).mean);
      std::cout << "# " << setting.name << ": KL " << means.back() << std::endl;
    }
    std::cout << "ratio_" << setting.name << ' ' << raw / written << '\n';
    print_value(std::cout, std::string("kl_") + setting.name, "", summarise(means));
    std::cout << std::flush;
  }

  /// Memory that this process has held at most since the last call, in MB.
  static double peak_megabytes() {
    double peak = 0;
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;) {
      if (word == "VmHWM:" && status >> peak) break;
    }
    std::ofstream("/proc/self/clear_refs") << 5;
    return peak / 1024;
  }

  void print_speed(std::span<const token_id> ids) const {
    std::vector<double> prompts, saves, restores;
    std::int64_t bytes = 0;
    double peak = 0;
    for (int round = 0; round < 3; ++round) {                           // alternated: both see the same machine
      const auto stored = make("kvtc-35x", ids.size());
      prompts.push_back(kvx::bench::seconds([&] { decode_loop::run_prompt(pass, *stored, ids); }));
      (void)peak_megabytes();
      const double held = peak_megabytes();
      const auto cost = stored->store(ids);
      peak = std::max(peak, peak_megabytes() - held);
      saves.push_back(cost->save_seconds);
      restores.push_back(cost->restore_seconds);
      bytes = cost->bytes;
    }
    const std::vector<std::byte> file(static_cast<std::size_t>(bytes), std::byte{7});
    std::uint64_t sum = 0;
    std::vector<double> checks;
    for (int round = 0; round < 9; ++round) checks.push_back(kvx::bench::seconds([&] { sum += kvx::checksum(file); }));
    const double restore = kvx::bench::median(restores);
    std::cout << "# prompt " << kvx::bench::median(prompts) << " s, restore " << restore << " s, file " << bytes << " bytes, checksum "
              << (sum & 255) << '\n';
    std::cout << "restore_vs_prefill " << kvx::bench::median(prompts) / restore << '\n'
              << "check_cost " << kvx::bench::median(checks) / restore << '\n'
              << "save_4096_seconds " << kvx::bench::median(saves) << '\n'
              << "save_4096_peak_mb " << peak << std::endl;
  }
};

int run(const options& o) {
  std::vector<end_to_end> wanted;
  for (const end_to_end& s : settings) {
    if (contains(std::string("ratio_") + s.name, o.filter) || contains(std::string("kl_") + s.name, o.filter)) wanted.push_back(s);
  }
  const bool speed = std::any_of(std::begin(speeds), std::end(speeds), [&](const char* name) { return contains(name, o.filter); });
  if (o.list) {
    for (const end_to_end& s : wanted) std::cout << s.name << '\n';
    if (speed) std::cout << "restore_vs_prefill\n";
    return 0;
  }
  if (wanted.empty() && !speed) throw std::runtime_error("--filter is '" + o.filter + "', which no name contains");
  const kvx::host exec{.threads = static_cast<int>(o.threads)};
  const decode_loop::gguf file(o.model);
  const decode_loop::model weights(file);
  const decode_loop::tokenizer words(file);
  decode_loop::forward_pass pass(weights, exec, 512);
  const decode_loop::codec_files codecs(o.calibration, weights);
  const storing_bench bench{pass, exec, codecs};
  std::size_t longest = speed ? 4096 : 0;
  for (const end_to_end& s : wanted) longest = std::max(longest, s.context + scored);
  std::vector<std::vector<token_id>> texts;
  for (const named_text& t : o.texts) texts.push_back(read_tokens(t, words, longest));
  for (const end_to_end& s : wanted) bench.print_end_to_end(s, texts);
  if (speed) bench.print_speed(std::span(texts.at(0)).first(4096));
  return 0;
}

}  // namespace
}  // namespace quality

int main(int argc, char** argv) {
  try {
    const auto o = quality::parse(argc, argv, {});
    if (o.help) {
      std::cout << quality::help;
      return 0;
    }
    return quality::run(o);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_storing: %s\n", error.what());
    return 2;
  }
}
