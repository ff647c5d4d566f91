// Encoding keys against copying them, on one core, both from memory.
//
// usage: key_code [<filter>]     prints "name value"; lines that begin with # say under which conditions

#include "../support/machine.hpp"
#include "../support/timing.hpp"
#include "../support/world.hpp"

#include <kvx/backend/memory.hpp>
#include <kvx/sketch/host/key_code.hpp>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <string_view>

using namespace kvx;

namespace {

constexpr std::int64_t keys = 262144;
constexpr int dim = 128;
constexpr int page_tokens = 64;
constexpr std::int64_t pages = keys / page_tokens;
constexpr std::int64_t key_bytes = keys * dim * 2;
constexpr std::int64_t copies = 8;  // of the keys: one is read again after 448 MiB of others, so that no cache holds it
constexpr page_shape shape{page_tokens, dim, dim};

/// Normal keys with spectrum i^-1 and norm about 20, in `copies` copies.
memory_block make_keys() {
  memory_block block(lazy_pages(), copies * key_bytes);
  bf16* const k = reinterpret_cast<bf16*>(block.data());
  bench::fast_normal normal{1};
  float norm = 0;
  float deviation[dim];
  for (int d = 0; d < dim; ++d) norm += 1 / static_cast<float>(d + 1);
  for (int d = 0; d < dim; ++d) deviation[d] = 20 / std::sqrt(norm * static_cast<float>(d + 1));
  for (std::int64_t i = 0; i < keys * dim; ++i) k[i] = round_to<bf16>(deviation[i % dim] * normal());
  for (std::int64_t c = 1; c < copies; ++c) std::memcpy(k + c * keys * dim, k, static_cast<std::size_t>(key_bytes));
  return block;
}

void encode_vs_memcpy() {
  constexpr key_sketch sketch;
  const memory_block block = make_keys();
  const memory_block copy(lazy_pages(), key_bytes);
  const auto encoder = make_key_encoder<bf16, sketch.bits>(sketch, dim);

  std::int64_t column_bytes = 0;
  for (const column& c : sketch_columns(sketch, shape)) column_bytes += c.pitch() * pages;
  const memory_block memory(lazy_pages(), column_bytes);
  key_columns columns;
  std::byte* next = memory.data();
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const std::int64_t pitch = sketch_columns(sketch, shape)[c].pitch();
    columns[c] = {next, pitch, 1};
    next += pitch * pages;
  }
  std::int64_t turn = 0;
  const auto cold = [&] { return block.data() + turn++ % copies * key_bytes; };
  const auto t =
      bench::alternate({[&] { std::memcpy(copy.data(), cold(), static_cast<std::size_t>(key_bytes)); },
                        [&] {
                          const bf16* const k = reinterpret_cast<const bf16*>(cold());
                          for (std::int64_t p = 0; p < pages; ++p) {
                            encode_page(encoder, k + p * page_tokens * dim, dim, page_tokens, nullptr, code_of<true>(columns, p, 0));
                          }
                        }},
                       9);
  std::printf("# %s, 2 MiB pages hold %.0f %% of the keys; memcpy %.1f ns a key, encode %.1f ns: %.1f million keys a second\n",
              name_of(simd_level().used), 100 * bench::large_page_share(block.data()), t[0] / keys * 1e9, t[1] / keys * 1e9,
              keys / t[1] * 1e-6);
  std::printf("encode_vs_memcpy %.2f\n", t[1] / t[0]);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view filter = argc > 1 ? argv[1] : "";
  if (std::string_view("encode_vs_memcpy").find(filter) != std::string_view::npos) encode_vs_memcpy();
}
