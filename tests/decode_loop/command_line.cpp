// The small parts of the program: options, sampling, divergence, printed numbers.

#include <caches.hpp>
#include <divergence.hpp>
#include <file_error.hpp>
#include <options.hpp>
#include <report.hpp>
#include <sampler.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <random>

using namespace decode_loop;

namespace {

options parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "decode_loop");
  return parse_options(static_cast<int>(arguments.size()), arguments.data());
}

std::string refusal(const std::vector<const char*>& arguments) {
  try {
    parse(arguments);
  } catch (const option_error& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("options are read") {
  const options o = parse({"--model", "m", "--text", "t", "--keep", "12", "--threads", "3", "--all", "--temperature", "0.5", "--csv", "c"});
  CHECK(o.model == "m");
  CHECK(o.text == "t");
  CHECK(o.keep == 12);
  CHECK(o.threads == 3);
  CHECK(o.all);
  CHECK(o.temperature == 0.5);
  CHECK(o.csv == "c");
  CHECK(parse({"--help"}).help);
  CHECK(parse({"-h"}).help);
}

TEST_CASE("wrong options get one line that names them") {
  CHECK(refusal({"--modle", "m"}) == "'--modle' is no option; --help lists them");
  CHECK(refusal({"--model"}) == "--model needs a value");
  CHECK(refusal({"--keep", "0"}) == "--keep '0': a number from 1 to 16777216 is needed");
  CHECK(refusal({"--keep", "12x"}) == "--keep '12x': a number from 1 to 16777216 is needed");
  CHECK(refusal({"--seed", "99999999999999999999"}) == "--seed '99999999999999999999': a number from 0 to 9223372036854775807 is needed");
  CHECK(refusal({"--temperature", "nan"}) == "--temperature 'nan': a number from 0 to 100 is needed");
  CHECK(refusal({"--prompt", ""}) == "--prompt '': the value is empty");
  CHECK(refusal({"--model", "m", "--prompt", "p", "--text", "t"}) == "--prompt and --text exclude each other");
  CHECK(refusal({"--model", "m", "--prompt", "p", "--cache", "none"}) == "--cache 'none' is no cache type; --help lists them");
  CHECK(refusal({"--model", "m", "--text", "t", "--audit", "--bench-prompt"}).starts_with("--audit needs a document: it excludes"));
  CHECK(refusal({"--replay", "r", "--audit"}).starts_with("--audit needs a document: it excludes"));
  CHECK(refusal({"--model", "m", "--text", "t", "--audit", "--cache", "full"}) == "--audit --cache 'full': this cache does not retrieve");
  CHECK(refusal({"--model", "m", "--text", "t", "--audit", "--cache", "paris_kv"}) == "accepted");
  CHECK(refusal({"--text", "t"}).starts_with("--model FILE is needed"));
  CHECK(refusal({"--model", "m"}) == "--text FILE or --prompt TEXT is needed");
}

TEST_CASE("help names every cache type") {
  for (const cache_choice& choice : all_caches()) {
    CHECK(help_text().find(choice.name) != std::string::npos);
    CHECK(find_cache(choice.name) == &choice);
  }
  CHECK(find_cache("none") == nullptr);
}

TEST_CASE("greedy: the lowest id of equals, never NaN") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  CHECK(most_likely(std::vector<float>{1, 3, 3, 2}) == 1);
  CHECK(most_likely(std::vector<float>{nan, -5, nan, -4}) == 3);
  CHECK(most_likely(std::vector<float>{-inf, -inf}) == 0);
  CHECK(most_likely(std::vector<float>{nan, nan}) >= 0);
}

TEST_CASE("sampling follows the softmax, repeats with its seed, and never draws NaN") {
  const std::vector<float> logits{0, std::log(2.0F), std::numeric_limits<float>::quiet_NaN(), std::log(5.0F)};
  sampler one(1, 7), two(1, 7);
  std::vector<int> drawn(4);
  for (int i = 0; i < 80000; ++i) {
    const token_id id = one(logits);
    REQUIRE(id == two(logits));
    ++drawn[static_cast<std::size_t>(id)];
  }
  CHECK(drawn[2] == 0);
  CHECK(drawn[0] == doctest::Approx(10000).epsilon(0.05));
  CHECK(drawn[1] == doctest::Approx(20000).epsilon(0.05));
  CHECK(drawn[3] == doctest::Approx(50000).epsilon(0.05));
  CHECK(sampler()(logits) == 3);
  CHECK(sampler(1e-3, 1)(logits) == 3);
}

TEST_CASE("divergence: KL, agreement and perplexity of known distributions") {
  const std::vector<float> p{std::log(0.5F), std::log(0.5F)}, q{std::log(0.25F) + 3, std::log(0.75F) + 3};
  divergence d;
  d.add(p, p, 0);
  d.add(p, q, 1);
  CHECK(d.kl()[0] == 0);
  CHECK(d.kl()[1] == doctest::Approx(0.5 * std::log(2.0) + 0.5 * std::log(2.0 / 3)));
  CHECK(d.kl_mean() == doctest::Approx(d.kl()[1] / 2));
  CHECK(d.kl_median() == doctest::Approx(d.kl()[1] / 2));
  CHECK(d.top1() == 0.5);
  CHECK(d.perplexity() == doctest::Approx(std::sqrt(1 / 0.5 / 0.75)));
  d.add(p, q, 0);
  CHECK(d.kl_median() == d.kl()[1]);
}

TEST_CASE("numbers and CSV") {
  CHECK(number(3.14159, 2) == "3.14");
  CHECK(number(0, 4) == "0.0000");
  CHECK(number(0.00002, 4) == "2.0e-05");
  const auto path = (std::filesystem::temp_directory_path() / ("kvx_csv_test_" + std::to_string(std::random_device()()))).string();
  table{{"a", "b"}, {{"x,y", "say \"z\""}}}.write_csv(path);
  const auto bytes = read_file(path);
  CHECK(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) == "a,b\n\"x,y\",\"say \"\"z\"\"\"\n");
  std::filesystem::remove(path);
  CHECK_THROWS_WITH_AS(table{}.write_csv("/no/such/folder/x.csv"), "/no/such/folder/x.csv: cannot be written", file_error);
}
