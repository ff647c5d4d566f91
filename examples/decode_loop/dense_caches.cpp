// The dense cache types: every row, or a window of the latest ones.

#include "cache_lines.hpp"

#include <kvx/layout/contiguous.hpp>

namespace decode_loop {
namespace {

constexpr auto full_bf16 = [](auto dim) { return kvx::full<kvx::bf16, dim()>{}; };
constexpr auto full_half = [](auto dim) { return kvx::full<kvx::half, dim()>{}; };
constexpr auto full_float = [](auto dim) { return kvx::full<float, dim()>{}; };
constexpr auto slab_bf16 = [](auto dim) {
  return kvx::spec<kvx::contiguous<kvx::bf16, kvx::page_shape{.tokens = 64, .key_dim = dim(), .value_dim = dim()}>>{};
};

}  // namespace

std::vector<cache_choice> dense_caches() {
  return {
      line("full", "every row in bf16, every row attended to", full_bf16, retrieving, {.by_default = true}),
      line("window", "the latest keep + 256 rows and 4 sinks, two dense layers", full_bf16, windows, {.by_default = true}),
      line("full-half", "full, in half", full_half, retrieving),
      line("full-float", "full, in float", full_float, retrieving),
      line("full-contiguous", "full, one slab a sequence", slab_bf16, retrieving),
      line("window-half", "window of half the keep", full_bf16, windows, {.keep = .5}),
      line("window-double", "window of twice the keep", full_bf16, windows, {.keep = 2}),
  };
}

}  // namespace decode_loop
