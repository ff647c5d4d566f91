// Decoding rANS streams against libdeflate on the same symbols, and against one lane after the other, on one core.
//
// usage: rans [<filter>]     prints "name value"; lines that begin with # say under which conditions
//
// rans_decode_vs_libdeflate_low, _high: symbols a second over those of libdeflate, which has them packed two to a byte; sources of 1.3
// and 3.5 bits a symbol, normal coefficients under a dead zone, 1,000 components of 256 tokens. rans_decode_vs_scalar: the low one over
// plain loops.

#include "../support/timing.hpp"

#include <kvx/codec/deflate.hpp>
#include <kvx/codec/host/rans.hpp>
#include <kvx/codec/scale_tables.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

using namespace kvx;

namespace {

constexpr std::int32_t components = 1000, tokens = 256;
constexpr std::int64_t symbols = std::int64_t{components} * tokens;

void demand(const status& s) {
  if (s.ok()) return;
  std::fprintf(stderr, "rans: %s\n", message(s).c_str());
  std::exit(1);
}

void measure(const char* source, double scale, std::string_view filter) {
  static const scale_tables tables;
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  std::vector<std::int16_t> values(symbols), back(symbols);
  for (auto& v : values) {
    const double x = scale * normal(random);
    const double n = std::min(std::floor(std::fabs(x) + 77 / 256.0), 7.0);  // two fit a byte
    v = static_cast<std::int16_t>(x < 0 ? -n : n);
  }
  const std::vector<std::uint16_t> table_of(components, table_of_scale({code_of_power(static_cast<float>(scale)), 0, 0}, 0));
  const symbol_model model{tables.lookups(), table_of.data(), components};
  std::vector<std::byte> stream(static_cast<std::size_t>(rans_bound(model, tokens)));
  std::int64_t bytes = 0;
  demand(rans_encode(host{}, model, {values.data(), components, tokens, tokens}, stream, bytes));
  stream.resize(static_cast<std::size_t>(bytes));

  std::vector<std::byte> packed(symbols / 2), deflated(symbols), inflated(symbols / 2);
  for (std::size_t i = 0; i < packed.size(); ++i) packed[i] = static_cast<std::byte>((values[2 * i] + 7) | (values[2 * i + 1] + 7) << 4);
  std::int64_t deflated_bytes = 0;
  demand(deflate_encode({}, packed, deflated, deflated_bytes));
  deflated.resize(static_cast<std::size_t>(deflated_bytes));

  const component_matrix<std::int16_t> out{back.data(), components, tokens, tokens};
  const auto times =
      bench::alternate({
                           [&] { demand(rans_decode(host{}, model, stream, out)); },
                           [&] { demand(rans_decode_with(simd::rans_kernel_of(instruction_set::baseline), model, stream, out)); },
                           [&] { demand(deflate_decode({}, deflated, inflated)); },
                       },
                       101);
  std::printf("# %s: %.3f bits a symbol, libdeflate %.3f; %s; symbols a second: %.0f million, plain loops %.0f, libdeflate %.0f\n", source,
              8.0 * static_cast<double>(bytes) / symbols, 8.0 * static_cast<double>(deflated_bytes) / symbols, name_of(simd_level().used),
              symbols / times[0] / 1e6, symbols / times[1] / 1e6, symbols / times[2] / 1e6);
  const std::string name = std::string("rans_decode_vs_libdeflate_") + source;
  if (name.find(filter) != std::string::npos) std::printf("%s %.3f\n", name.c_str(), times[2] / times[0]);
  if (std::string_view(source) == "low" && std::string_view("rans_decode_vs_scalar").find(filter) != std::string_view::npos)
    std::printf("rans_decode_vs_scalar %.3f\n", times[1] / times[0]);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view filter = argc > 1 ? argv[1] : "";
  measure("low", .7, filter);
  measure("high", 2.9, filter);
}
