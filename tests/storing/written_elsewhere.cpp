// Files that another build wrote (data/, by g++ 12 -O3 -march=native on a machine with AVX-512) are read by this one, whatever its
// compiler, flags and instruction set: what is raw to the bit, what is coded as near as there. KVX_WRITE_FILES=1 writes them anew, for a
// new version of a format.

#include <support/small_calibration.hpp>
#include <support/token_rows.hpp>

#include <kvx/kvtc.hpp>
#include <kvx/kvx.hpp>
#include <kvx/store/memory_store.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using namespace kvx;
using namespace kvx::test;

constexpr int L = 2, D = 8;
constexpr std::int64_t n = 90, sinks = 4, newest = 20;
using ours = cache<host, kvtc<bf16, D>>;
using paper = cache<host, kvtc_faithful_cache<bf16, D>>;
const geometry shape{.layers = L, .kv_heads = 1, .query_heads = 1, .max_tokens = 128};
const host exec{.threads = 1};
constexpr double coded_there = .0962812, planned_there = .0475177;  // as the build that wrote the files reads them

std::filesystem::path file(const char* name) { return std::filesystem::path(__FILE__).parent_path() / "data" / name; }

std::vector<std::byte> read(const char* name) {
  std::ifstream in(file(name), std::ios::binary);
  const std::vector<char> chars{std::istreambuf_iterator<char>(in), {}};
  std::vector<std::byte> bytes(chars.size());
  std::transform(chars.begin(), chars.end(), bytes.begin(), [](char c) { return static_cast<std::byte>(c); });
  return bytes;
}
void write(const char* name, std::span<const std::byte> bytes) {
  std::filesystem::create_directories(file(name).parent_path());
  std::ofstream(file(name), std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

/// K or V (n, D) of a layer: whole numbers over 2^23, the same from every build.
std::vector<float> rows(part which, int layer) {
  std::vector<token> ids(n);
  std::iota(ids.begin(), ids.end(), 7);
  return rows_of<float>(ids, which, layer, 1, D);
}

template <class Cache>
Cache cache_of(const std::shared_ptr<const calibrated_model>& model) {
  std::conditional_t<std::is_same_v<Cache, ours>, kvtc<bf16, D>, kvtc_faithful_cache<bf16, D>> spec;
  spec.codec.model = model;
  spec.codec.log2_step = -512;
  return Cache(exec, spec, shape);
}

template <class Cache>
void write_frame(const std::shared_ptr<const calibrated_model>& model, const char* name) {
  Cache c = cache_of<Cache>(model);
  const sequence s = c.open(exec);
  step step = c.begin(exec, {{s, n}});
  for (int layer = 0; layer < L; ++layer) c.append(exec, step, layer, rows(part::key, layer).data(), rows(part::value, layer).data());
  c.commit(exec, step);
  memory_store store;
  std::vector<std::byte> bytes;
  REQUIRE(c.save(exec, s, store, digest{}, {.sinks = sinks, .newest = newest, .chunk = 64}).ok());
  REQUIRE(read_all(store, digest{}, 1 << 20, bytes).ok());
  write(name, bytes);
}

/// Root mean square of what coded rows are off by; raw rows are compared to the bit.
template <class Cache>
double error_of(const std::shared_ptr<const calibrated_model>& model, const char* name) {
  Cache c = cache_of<Cache>(model);
  memory_store store;
  REQUIRE(store.put(digest{}, read(name)).ok());
  const restored back = c.restore(exec, store, digest{});
  REQUIRE_MESSAGE(back.ok(), message(back.state));
  REQUIRE(back.tokens == n);
  double sum = 0;
  bool raw_same = true;
  for (int layer = 0; layer < L; ++layer) {
    for (const part which : {part::key, part::value}) {
      const std::vector<float> wanted = rows(which, layer);
      const auto view = c.view(layer);
      const auto& array = which == part::key ? view.key : view.value;
      for (std::int64_t t = 0; t < n; ++t) {
        const auto* got = array.at(c.pages(layer, back.of)[static_cast<std::size_t>(t / Cache::layout::shape.tokens)], 0,
                                   t % Cache::layout::shape.tokens);
        for (int d = 0; d < D; ++d) {
          const bf16 was = round_to<bf16>(wanted[static_cast<std::size_t>(t * D + d)]);
          const double off = static_cast<double>(to_float(got[d]) - to_float(was));
          if (t < sinks || t >= n - newest) {
            raw_same = raw_same && got[d] == was;
          } else {
            sum += off * off;
          }
        }
      }
    }
  }
  CHECK(raw_same);
  return std::sqrt(sum / static_cast<double>(2 * L * D * (n - sinks - newest)));
}

}  // namespace

TEST_CASE("calibration files and frames of another build") {
  if (std::getenv("KVX_WRITE_FILES") != nullptr) {
    const auto bytes = write_calibration(small_calibration({L, 1, D, D}, whole_model(L, 1)));
    write("small.kvxcal", bytes);
    std::shared_ptr<const calibrated_model> model;
    REQUIRE(read_calibrated(bytes, model).ok());
    write_frame<ours>(model, "entropy_first.kvx");
    write_frame<paper>(model, "faithful.kvx");
  }
  const auto bytes = read("small.kvxcal");
  std::shared_ptr<const calibrated_model> model;
  REQUIRE(read_calibrated(bytes, model).ok());
  CHECK(write_calibration(model->of()) == bytes);
  const double coded = error_of<ours>(model, "entropy_first.kvx"), planned = error_of<paper>(model, "faithful.kvx");
  CAPTURE(coded);
  CAPTURE(planned);
  CHECK(coded == doctest::Approx(coded_there).epsilon(.001));
  CHECK(planned == doctest::Approx(planned_there).epsilon(.001));
}
