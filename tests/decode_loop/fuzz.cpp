// Mutated GGUF and trace files for KVX_FUZZ_SECONDS (default 5): a file_error or a result, never a crash or another exception.

#include "tiny_model.hpp"

#include <caches.hpp>
#include <comparison.hpp>
#include <forward.hpp>
#include <sampler.hpp>
#include <tokenizer.hpp>
#include <trace.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <sstream>

using namespace decode_loop;

namespace {

/// Half of the time that each reader gets.
std::chrono::duration<double> share_of_time() {
  const char* seconds = std::getenv("KVX_FUZZ_SECONDS");
  return std::chrono::duration<double>((seconds == nullptr ? 5.0 : std::atof(seconds)) / 2);
}

/// Damages bytes in one of the ways that files are damaged; the first `header` bytes more often than the others.
class mutator {
 public:
  explicit mutator(unsigned seed) : random_(seed) {}

  std::string operator()(std::string bytes, std::size_t header) {
    for (std::size_t changes = 1 + below(4); changes > 0 && !bytes.empty(); --changes) {
      const std::size_t at = below(below(4) > 0 ? std::min(header, bytes.size()) : bytes.size());
      switch (below(6)) {
        case 0: bytes[at] = static_cast<char>(bytes[at] ^ 1 << below(8)); break;
        case 1: bytes[at] = static_cast<char>(below(256)); break;
        case 2: overwrite<std::uint32_t>(bytes, at); break;
        case 3: overwrite<std::uint64_t>(bytes, at); break;
        case 4: bytes.erase(at, below(2) > 0 ? bytes.size() : 1 + below(16)); break;
        default: bytes.insert(at, bytes.substr(below(bytes.size()), 1 + below(64))); break;
      }
    }
    return bytes;
  }

  std::size_t below(std::size_t limit) { return limit == 0 ? 0 : random_() % limit; }

 private:
  template <class T>
  void overwrite(std::string& bytes, std::size_t at) {
    constexpr std::uint64_t values[] = {0, 1, 2, 31, 32, 33, 0x7f, 0xff, 0xffff, 1U << 31, ~0U, 1ULL << 32, 1ULL << 60, 1ULL << 63, ~0ULL};
    const T value = static_cast<T>(values[below(std::size(values))] + below(3) - 1);
    if (bytes.size() >= sizeof(T)) std::memcpy(bytes.data() + std::min(at, bytes.size() - sizeof(T)), &value, sizeof(T));
  }

  std::mt19937_64 random_;
};

/// Opens a model, encodes, and runs three tokens where the head dimension is one that caches are compiled for.
void use_model(const std::string& bytes) {
  std::vector<std::byte> copy(bytes.size());
  std::transform(bytes.begin(), bytes.end(), copy.begin(), [](char c) { return static_cast<std::byte>(c); });
  const gguf file(std::move(copy), "fuzz");
  const tokenizer words(file);
  words.encode("the aaa 12\xff");
  const model weights(file);
  if (weights.shape.head_dim != 64) return;
  forward_pass pass(weights, {.threads = 1}, 3);
  const auto cache = make_reference({.threads = 1}, request_for(weights.shape, 8, 3, 4));
  const std::vector<token_id> ids{0, static_cast<token_id>(weights.shape.vocabulary - 1), 0};
  most_likely(forward(pass, *cache, ids));
}

void use_trace(const std::string& bytes) {
  trace_reader trace(std::make_unique<std::istringstream>(bytes), "fuzz");
  const trace_shape& s = trace.shape();
  trace.ids();
  for (std::uint32_t l = s.first_layer; l < s.first_layer + s.layers; ++l) {
    for (const auto part : {trace_part::k, trace_part::v, trace_part::q}) trace.read(l, part);
  }
}

/// What became of many mutants.
struct tally {
  std::size_t accepted = 0, refused = 0;
};

template <class Mutate, class Use>
tally run_for(std::chrono::duration<double> time, const Mutate& mutate, const Use& use) {
  tally result;
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < time) {
    try {
      use(mutate());
      ++result.accepted;
    } catch (const file_error& error) {
      REQUIRE(std::string_view(error.what()).starts_with("fuzz: "));
      ++result.refused;
    }
  }
  MESSAGE(result.accepted << " mutants read, " << result.refused << " refused");
  return result;
}

/// Makes the header's checksum right again, so that its fields are looked at.
std::string with_checksum(std::string bytes) {
  if (bytes.size() < 88) return bytes;
  std::uint64_t sum = 0xcbf29ce484222325;
  for (std::size_t i = 0; i < 80; ++i) sum = (sum ^ static_cast<unsigned char>(bytes[i])) * 0x100000001b3;
  std::memcpy(bytes.data() + 80, &sum, 8);
  return bytes;
}

}  // namespace

TEST_CASE("mutated GGUF files") {
  std::vector<std::string> seeds;
  for (const test::tiny_form form : {test::tiny_form{}, {.half_split = true, .tied = false}}) {
    const auto bytes = test::tiny_model(form);
    seeds.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  mutator mutate(11);
  const auto seen = run_for(
      share_of_time(), [&] { return mutate(seeds[mutate.below(2)], 8192); }, use_model);
  CHECK(seen.accepted > 0);
  CHECK(seen.refused > 0);
}

TEST_CASE("mutated trace files") {
  const auto recorded = read_file(KVX_RECORDED_TRACE);
  const std::string large(reinterpret_cast<const char*>(recorded.data()), 88);  // a header whose blocks are missing
  mutator mutate(12);
  std::string small = large;
  const std::uint32_t heads[] = {1, 1, 2, 2};                           // KV heads, query heads, dims
  const std::uint64_t rows[] = {0, 3, 2};                               // position, tokens, queries
  std::memcpy(small.data() + 24, heads, sizeof(heads));
  std::memcpy(small.data() + 40, rows, sizeof(rows));
  small = with_checksum(small);
  const auto block = [&](std::size_t bytes) {                           // zeros and their checksum
    std::uint64_t sum = 0xcbf29ce484222325;
    for (std::size_t i = 0; i < bytes; ++i) sum *= 0x100000001b3;
    small += std::string(bytes, '\0') + std::string(reinterpret_cast<const char*>(&sum), 8);
  };
  for (const std::size_t bytes : {12U, 12U, 12U, 0U, 8U}) block(bytes); // ids, k, v, no k0, q, in half
  REQUIRE_NOTHROW(use_trace(small));

  const auto seen = run_for(
      share_of_time(),
      [&] {
        const auto mutant = mutate(mutate.below(4) > 0 ? small : large, 88);
        return mutate.below(2) > 0 ? with_checksum(mutant) : mutant;
      },
      use_trace);
  CHECK(seen.refused > 0);
}
