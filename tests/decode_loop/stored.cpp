// Prompts that go through a file before anything is decoded: the finer the codec's step, the nearer what follows; what is missing is named.

#include "tiny_model.hpp"

#include <comparison.hpp>
#include <file_error.hpp>
#include <stored_caches.hpp>

#include <kvx/codec/calibration_file.hpp>

#include <doctest/doctest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

using namespace decode_loop;

namespace {

/// A calibration of the tiny model that leaves its features as they are; `step` is what 35 times smaller takes.
kvx::calibration plain_calibration(const model_shape& s, std::int16_t step) {
  const auto layers = static_cast<std::int32_t>(s.layers), heads = static_cast<std::int32_t>(s.kv_heads),
             dim = static_cast<std::int32_t>(s.head_dim);
  kvx::calibration c;
  c.shape = {layers, heads, dim, dim};
  c.spans = kvx::whole_model(layers, heads);
  const auto features = static_cast<std::size_t>(c.spans[0].features(dim));
  kvx::span_basis b;
  b.mean.assign(features, 0);
  b.basis.assign(features * features, kvx::half{});
  for (std::size_t i = 0; i < features; ++i) b.basis[i * features + i] = kvx::round_to<kvx::half>(1);
  b.scales.assign(features, {0, 0, 0});
  c.keys = c.values = {b};
  const float bits = 32 * static_cast<float>(features) / 35;
  c.costs = {{static_cast<std::int16_t>(step - 1), 0, 2 * bits, 1, 1},
             {step, 0, bits, 2, 2},
             {static_cast<std::int16_t>(step + 1), 0, bits / 2, 3, 3}};
  return c;
}

void write(const std::filesystem::path& path, const kvx::calibration& c) {
  const auto bytes = kvx::write_calibration(c);
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

TEST_CASE("a prompt is stored, restored and gone on from; the error is the codec's") {
  const kvx::host exec{.threads = 2};
  const model weights(gguf(test::tiny_model(), "tiny"));
  forward_pass pass(weights, exec, 64);
  std::vector<token_id> ids(300);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<token_id>(i * 37 % 300);
  const cache_choice* const both[] = {find_cache("full"), find_cache("kvtc-35x-quick")};
  const cache_choice* const all[] = {both[0], both[1], find_cache("paris_kv-kvtc-20x-quick"), find_cache("ice_cache-kvtc-20x-quick")};
  const auto folder = std::filesystem::temp_directory_path() / ("kvx_stored_test_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  double coarse[4] = {}, fine[4] = {};
  for (const int step : {0, -2048}) {  // 1 and 1/256 of the unit that rows are of
    write(folder / "quick.kvxcal", plain_calibration(weights.shape, static_cast<std::int16_t>(step)));
    const codec_files codecs(folder.string(), weights);
    const compared result = compare(pass, exec, ids, 280, all, 8, &codecs);
    REQUIRE(result.decoded.rows.size() == 4);
    REQUIRE(result.stored.rows.size() == 3);
    CHECK(result.stored.rows[0].size() == result.stored.columns.size());
    CHECK(result.stored.rows[0][0] == "kvtc-35x-quick");
    CHECK(result.stored.rows[0][1] == "280");
    CHECK(std::atoll(result.stored.rows[0][2].c_str()) > 36 * 2 * 2 * 64 * 2);  // sinks and newest rows, 2 layers, K and V
    for (std::size_t i = 1; i < 4; ++i) (step == 0 ? coarse : fine)[i] = std::atof(result.decoded.rows[i][6].c_str());
  }
  for (int i = 1; i < 4; ++i) CHECK(coarse[i] > 10 * fine[i]);
  CHECK_FALSE(std::filesystem::exists(std::filesystem::temp_directory_path() / ("kvx_frames_" + std::to_string(::getpid()))));

  kvx::calibration other = plain_calibration(weights.shape, 0);
  other.shape.layers = 9;
  write(folder / "quick.kvxcal", other);
  const codec_files wrong(folder.string(), weights), none((folder / "nowhere").string(), weights);
  CHECK_THROWS_AS(static_cast<void>(compare(pass, exec, ids, 280, both, 8, &wrong)), file_error);
  CHECK_THROWS_AS(static_cast<void>(compare(pass, exec, ids, 280, both, 8, &none)), file_error);
  CHECK_THROWS_AS(static_cast<void>(compare(pass, exec, ids, 280, both, 8)), std::runtime_error);
  CHECK(codec_files::has(folder.string(), "quick"));
  CHECK_FALSE(codec_files::has(folder.string(), "predicted"));
  CHECK_FALSE(codec_files::has("", "quick"));
  std::filesystem::remove_all(folder);
}
