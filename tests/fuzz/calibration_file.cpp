// libFuzzer: calibration files. What is read is sound and writes the same file again; what is refused leaves things as they were.

#include <support/fuzz_mutator.hpp>
#include <support/sample_calibration.hpp>

#include <kvx/codec/level_alphabets.hpp>

#include <algorithm>
#include <cstdlib>

using namespace kvx;

namespace {

/// A file whose lists no longer fit together, as no damage of single bytes makes it.
std::vector<std::byte> contradiction(unsigned seed) {
  std::mt19937 random(seed);
  calibration c = test::sample_calibration(random() % 2 == 0);
  const auto resize = [&](auto& list) { list.resize(random() % (list.size() + 3)); };
  for (auto changes = 1 + random() % 2; changes > 0; --changes) {
    const std::size_t span = random() % c.spans.size();
    const bool is_key = random() % 2 == 0;
    auto& part = is_key ? c.keys : c.values;
    if (span >= part.size()) continue;
    span_basis& b = part[span];
    token_predictor& p = is_key ? c.key_predictor : c.value_predictor;
    switch (random() % 14) {
      case 0: resize(b.mean); break;
      case 1: resize(b.weights); break;
      case 2: resize(b.basis); break;
      case 3: resize(b.scales); break;
      case 4: resize(b.outputs); break;
      case 5: resize(b.plan.runs); break;
      case 6: resize(b.levels); break;
      case 7: resize(p.inputs); break;
      case 8: p.rank = static_cast<std::int64_t>(random() % 5); break;
      case 9: resize(c.spans[span].layers); break;
      case 10: c.spans[span].first_head = static_cast<std::int32_t>(random() % 4); break;
      case 11: resize(c.turn_of_layer); break;
      case 12: resize(c.turns); break;
      default: part.pop_back(); break;
    }
  }
  return write_calibration(c);
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  if (seed % 4 == 1) {
    const auto file = contradiction(seed);
    if (file.size() <= most) {
      std::memcpy(data, file.data(), file.size());
      return file.size();
    }
  }
  static const auto plain = write_calibration(test::sample_calibration(false)), whole = write_calibration(test::sample_calibration(true));
  return test::mutate(data, size, most, seed, seed % 3 == 0 ? plain : whole, sizeof(calibration_file_header), test::mend_calibration);
}

namespace {

/// Reads all that a decoder would.
double use(const calibration& c) {
  double sum = 0;
  for (std::size_t i = 0; i < 2 * c.spans.size(); ++i) {
    const span_basis& b = i % 2 == 0 ? c.keys[i / 2] : c.values[i / 2];
    const pca_basis view = b.view();
    for (std::int64_t f = 0; f < view.features; ++f) {
      sum += static_cast<double>(view.mean[f]) + (view.weights == nullptr ? 0 : static_cast<double>(view.weights[f]));
      for (std::int64_t r = 0; r < view.rank; ++r)
        sum += static_cast<double>(to_float(b.basis[static_cast<std::size_t>(r * view.features + f)]));
    }
    if (!b.levels.empty()) sum += static_cast<double>(level_alphabets(b.plan, b.levels).model().components);
    const std::int64_t numbers = i % 2 == 0 ? c.shape.key_features() : c.shape.value_features();
    if (numbers > 1 << 20) continue;
    std::vector<float> token(static_cast<std::size_t>(numbers));
    scatter_features(c.spans[i / 2], b.mean.data(), c.shape.kv_heads, i % 2 == 0 ? c.shape.key_dim : c.shape.value_dim, token.data());
  }
  for (const std::uint16_t t : c.turn_of_layer) sum += c.turns[t].base;
  return c.costs.empty() ? sum : sum + step_for_ratio(c, 20);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  calibration c;
  if (!read_calibration(file, c).ok()) {
    if (!(c == calibration{})) std::abort();
    return 0;
  }
  if (!check_calibration(c).ok()) std::abort();
  (void)use(c);
  const auto again = write_calibration(c);
  if (!std::equal(again.begin(), again.end(), file.begin(), file.end())) std::abort();
  return 0;
}
