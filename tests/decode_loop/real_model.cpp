// The example model against what its numpy forward pass printed: tokens, greedy continuation, perplexity. Left out without the file.

#include <comparison.hpp>
#include <divergence.hpp>
#include <forward.hpp>
#include <sampler.hpp>
#include <trace.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <optional>

using namespace decode_loop;

namespace {

struct real_model {
  explicit real_model(const gguf& file) : words(file), weights(file) {}
  tokenizer words;
  model weights;
};

/// The model at KVX_MODEL, or where examples/model.sh puts it; null, with a line that says so, where there is none.
const real_model* find_model() {
  static const std::optional<real_model> found = []() -> std::optional<real_model> {
    const char* given = std::getenv("KVX_MODEL");
    const std::string path = given != nullptr ? given : KVX_FETCHED_MODEL;
    if (given == nullptr && !std::filesystem::exists(path)) return std::nullopt;
    return real_model(gguf(path));
  }();
  if (!found) MESSAGE("left out: no model; KVX_MODEL names one, examples/model.sh fetches it");
  return found ? &*found : nullptr;
}

const kvx::host exec{.threads = 2};

}  // namespace

TEST_CASE("the real vocabulary gives the ids of the `tokenizers` package") {
  const real_model* const llm = find_model();
  if (llm == nullptr) return;
  const auto ids = [&](std::string_view text) { return llm->words.encode(text); };
  using list = std::vector<token_id>;
  CHECK(ids("The capital of France is") == list{504, 3575, 282, 4649, 314});
  CHECK(ids("In the beginning God created the heaven and the earth.\n") ==
        list{788, 260, 3616, 1839, 2312, 260, 10419, 284, 260, 3103, 30, 198});
  CHECK(ids("for (int i = 0; i < 1024; ++i) {\n\tx[i] *= 0.5f;  // it's halved\n}\n") ==
        list{1710, 365, 591, 2056, 446, 216,   32,  43, 2056, 2067, 216, 33, 32,  34,    36,  43,  1232,  27,   89,  25,  1662, 198,
             197,  104, 75,  89,   77,  32652, 216, 32, 30,   37,   86,  43, 216, 13241, 357, 506, 10225, 1061, 198, 109, 198});
  CHECK(ids("Größe, naïve café — 漢字かな交じり文 \u00a0 Привет, мир! ½ ٣ 👩‍👩‍👧 e\u0301\r\n") ==
        list{27302, 7466,  34878, 85,   28,   15486, 46494, 37366, 1841,  17097, 137, 112,   36518, 7365,  229,
             7365,  120,   16736, 114,  7365, 242,   10391, 228,   29184, 3351,  250, 5470,  249,   46879, 16464,
             32547, 28,    41337, 7872, 9175, 17,    216,   16738, 216,   164,   113, 15107, 235,   119,   321,
             231,   10813, 235,   119,  321,  231,   10813, 235,   117,   297,   151, 219,   2738});
  CHECK(ids("   \n\n  we'll 'S can't've  \t end   ") == list{333, 8866, 392, 3060, 637, 67, 416, 982, 3543, 256, 197, 1112, 333});
  CHECK(ids("<|im_start|>user\n") == list{44, 108, 306, 79, 3738, 108, 46, 4093, 198});
}

TEST_CASE("the greedy continuation is the reference's, through fp32 and bf16") {
  const real_model* const llm = find_model();
  if (llm == nullptr) return;
  for (const char* name : {"full-float", "full", "window"}) {
    CAPTURE(name);
    forward_pass pass(llm->weights, exec, 16);
    const auto cache = find_cache(name)->make(exec, request_for(llm->weights.shape, 64, 16, 256));
    std::vector<token_id> ids = llm->words.encode("The capital of France is");
    auto logits = run_prompt(pass, *cache, ids);
    for (int i = 0; i < 8; ++i) {
      ids.push_back(most_likely(logits));
      logits = forward(pass, *cache, std::span(ids).last(1));
    }
    CHECK(llm->words.decode(ids) == "The capital of France is Paris.\n\nThe answer is:");
  }
}

TEST_CASE("perplexity of 1,023 tokens of prose, and the recorded keys and values") {
  const real_model* const llm = find_model();
  if (llm == nullptr) return;
  trace_reader trace(KVX_RECORDED_TRACE);                               // its ids are the reference's text
  std::vector<token_id> ids = trace.ids();
  CHECK(std::vector<token_id>(ids.begin(), ids.begin() + 8) == std::vector<token_id>{2326, 28, 260, 3383, 85, 392, 437, 30});
  ids.resize(1024);
  const auto recorded_k = trace.read(13, trace_part::k);
  const auto recorded_v = trace.read(13, trace_part::v);

  for (const auto& expected : {std::pair{"full-float", 0.0005}, {"full", 0.005}}) {
    const std::string name = expected.first;
    const double tolerance = expected.second;
    CAPTURE(name);
    constexpr std::size_t chunk = 256;
    forward_pass pass(llm->weights, exec, chunk);
    const std::size_t vocabulary = llm->weights.shape.vocabulary;
    const auto cache = find_cache(name)->make(exec, request_for(llm->weights.shape, ids.size(), chunk, 256));
    double worst = 0;                                                   // difference to the recorded rows, halves of rows of norm ~20
    std::size_t recorded = 0;
    const layer_watch compare_rows = [&](std::size_t layer, const layer_rows& rows) {
      if (layer != 13) return;
      for (std::size_t i = 0; i < rows.k.size(); ++i) {
        worst = std::max(worst, static_cast<double>(std::abs(rows.k[i] - recorded_k[recorded + i])));
        worst = std::max(worst, static_cast<double>(std::abs(rows.v[i] - recorded_v[recorded + i])));
      }
      recorded += rows.k.size();
    };
    double surprise = 0;
    int agreed = 0;
    for (std::size_t done = 0; done < ids.size(); done += chunk) {
      const auto logits = forward(pass, *cache, std::span(ids).subspan(done, chunk), chunk, compare_rows);
      for (std::size_t t = 0; t < chunk && done + t + 1 < ids.size(); ++t) {
        const auto row = logits.subspan(t * vocabulary, vocabulary);
        const token_id next = ids[done + t + 1];
        surprise -= log_probabilities(row)[static_cast<std::size_t>(next)];
        agreed += most_likely(row) == next;
      }
    }
    CHECK(std::exp(surprise / 1023) == doctest::Approx(12.041342778426255).epsilon(tolerance));
    CHECK(agreed / 1023.0 == doctest::Approx(0.42130987292277616).epsilon(name == "full" ? 0.01 : 0.003));
    CHECK(recorded == 1024 * 3 * 64);
    CHECK(worst < (name == "full" ? 0.5 : 0.02));
  }
}
