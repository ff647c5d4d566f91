// A conversation that pauses: saved to a file, restored into another cache, found again by the beginning of its tokens, and damaged.

#include <kvx/kvx.hpp>
#include <kvx/store/file_store.hpp>
#include <kvx/store/memory_store.hpp>
#include <kvx/storing.hpp>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <numeric>
#include <span>
#include <vector>

namespace {

constexpr int layers = 4, kv_heads = 2, query_heads = 8, dim = 64;
using cache_type = kvx::cache<kvx::host, kvx::full<kvx::bf16, dim>>;

/// What your model computes of a token: here, numbers that follow from its id.
std::vector<float> rows_of(std::span<const std::int32_t> ids, int heads, int salt) {
  std::vector<float> rows;
  for (const std::int32_t id : ids) {
    for (int i = 0; i < heads * dim; ++i) rows.push_back(static_cast<float>((id * 37 + i * 11 + salt) % 101) / 101 - .5f);
  }
  return rows;
}

/// One forward pass; returns the output of the last layer.
std::vector<float> forward(cache_type& cache, const kvx::host& exec, kvx::sequence s, std::span<const std::int32_t> ids) {
  std::vector<float> out(ids.size() * query_heads * dim);
  kvx::step step = cache.begin(exec, {{s, static_cast<std::int64_t>(ids.size())}});
  for (int layer = 0; layer < layers; ++layer) {
    cache.append(exec, step, layer, rows_of(ids, kv_heads, layer).data(), rows_of(ids, kv_heads, layer + 50).data());
    cache.attend(exec, step, layer, rows_of(ids, query_heads, layer + 90).data(), out.data());
  }
  cache.commit(exec, step);
  return out;
}

}  // namespace

int main() {
  const kvx::host exec{.threads = 2};
  const kvx::geometry geometry{.layers = layers,
                               .kv_heads = kv_heads,
                               .query_heads = query_heads,
                               .max_tokens = 4096,
                               .max_sequences = 4,
                               .model = kvx::field_digest().add("model", "of this example").finish()};
  cache_type yesterday(exec, {}, geometry), today(exec, {}, geometry);

  std::vector<std::int32_t> ids(400);
  std::iota(ids.begin(), ids.end(), 1000);
  const kvx::sequence talk = yesterday.open(exec);
  forward(yesterday, exec, talk, ids);

  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "kvx_save_restore";
  kvx::file_store files(folder);
  const kvx::digest family = yesterday.family("my salt"), key = kvx::key_of(family, ids);
  const kvx::status saved = yesterday.save(exec, talk, files, key, {.token_ids = ids});
  std::printf("saved: %s, %s\n", kvx::message(saved).c_str(), (folder / (kvx::to_hex(key) + ".kvx")).c_str());

  // The whole, and two answers that go on from it.
  const kvx::restored back = today.restore(exec, files, key);
  if (!back.ok()) return 1;
  const std::vector<std::int32_t> next = {7, 8, 9};
  const bool same = forward(yesterday, exec, talk, next) == forward(today, exec, back.of, next);
  std::printf("restored %lld tokens; the next three attend to the same to the bit: %s\n", static_cast<long long>(back.tokens),
              same ? "yes" : "no");

  // Another prompt begins like the stored one.
  kvx::prefix_index prefixes;
  if (!kvx::index_store(files, "my salt", prefixes).ok()) return 1;
  std::vector<std::int32_t> prompt(ids.begin(), ids.begin() + 350);
  prompt.push_back(5);
  const kvx::restored prefix = today.restore_prefix(exec, files, prefixes, prompt, {.salt = "my salt"});
  std::printf("a prompt of %zu tokens: %lld tokens of it need not be computed\n", prompt.size(), static_cast<long long>(prefix.tokens));

  // Layer by layer: the first layers work while later ones are decoded.
  auto layer_by_layer = today.restore_layers(exec, files, key);
  while (layer_by_layer.ok() && !layer_by_layer.done()) (void)today.decode_layer(exec, layer_by_layer);

  // What is damaged is refused, and leaves nothing behind.
  kvx::memory_store broken;
  std::vector<std::byte> bytes;
  if (!kvx::read_all(files, key, std::uint64_t{1} << 30, bytes).ok()) return 1;
  bytes.resize(bytes.size() / 2);
  if (!broken.put(key, bytes).ok()) return 1;
  const int before = today.stats().sequences;
  const kvx::restored refused = today.restore(exec, broken, key);
  std::printf("half of it: %s; sequences before and after: %d, %d\n", kvx::message(refused.state).c_str(), before, today.stats().sequences);
  std::filesystem::remove_all(folder);
  return same && prefix.tokens == 350 && !refused.ok() ? 0 : 1;
}
