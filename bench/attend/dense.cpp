// Dense attention against the machine: decoding against reading K and V, a prompt against a matrix product.
//
// usage: dense [<filter>]     prints "name value"; lines that begin with # say under which conditions

#include "../support/machine.hpp"
#include "../support/timing.hpp"
#include "../support/world.hpp"

#include <kvx/attend/host/dense.hpp>

#include <cstdio>
#include <span>
#include <string_view>
#include <vector>

using namespace kvx;

namespace {

constexpr int heads = 8, group = 4, dim = 128;

/// attend_dense of the last `queries` of `length` tokens, all its arrays ready.
class attention {
 public:
  attention(const bench::world<bf16>& world, std::int64_t length, std::int64_t queries)
      : rows_(world.rows()), item_(world.item(length, queries)), q_(world.queries(queries, group)), out_(q_.size()), queries_(queries) {
    scratch_ = memory_block(lazy_pages(), attend_dense_scratch(exec_, rows_, {&item_, 1}, heads * group));
  }
  void operator()() {
    attend_dense(exec_, rows_, {&item_, 1}, tensor_view<const float, 3>(q_.data(), queries_, heads * group, dim),
                 tensor_view<float, 3>(out_.data(), queries_, heads * group, dim), {}, {},
                 std::span(scratch_.data(), static_cast<std::size_t>(scratch_.size())));
  }

 private:
  host exec_;
  row_view<const bf16> rows_;
  attend_item item_;
  std::vector<float> q_, out_;
  std::int64_t queries_;
  memory_block scratch_;
};

void decode() {
  constexpr std::int64_t tokens = 131072;
  const bench::world<bf16> world(heads, dim, tokens);
  attention attend(world, tokens, 1);
  std::uint64_t sum = 0;
  const auto t = bench::alternate({[&] { sum += bench::read_bytes(world.data(), world.bytes()); }, [&] { attend(); }}, 15);
  const double gigabytes = static_cast<double>(world.bytes()) * 1e-9;
  std::printf("# 2 MiB pages hold %.0f %% of K and V (checksum %llx)\n", 100 * bench::large_page_share(world.data()),
              static_cast<unsigned long long>(sum & 0xffff));
  std::printf("# read %.1f GB/s, dense decode %.2f ms, %.1f GB/s\n", gigabytes / t[0], t[1] * 1e3, gigabytes / t[1]);
  std::printf("dense_decode_ms %.3f\n", t[1] * 1e3);
  std::printf("dense_decode_vs_read %.3f\n", t[0] / t[1]);
}

void prompt() {
  constexpr std::int64_t tokens = 4096;
  constexpr int n = 2048;
  const bench::world<bf16> world(heads, dim, tokens);
  attention attend(world, tokens, tokens);
  const auto t = bench::alternate({[&] { bench::eigen_sgemm(n); }, [&] { attend(); }}, 7);
  const double flops = 4.0 * tokens * tokens * dim / 2 * heads * group / t[1];
  const double gemm = 2.0 * n * n * n / t[0];
  std::printf("# Eigen %s sgemm %.1f GFLOPS, dense prompt %.1f GFLOPS\n", bench::eigen_version().c_str(), gemm * 1e-9, flops * 1e-9);
  std::printf("dense_prompt_ms %.3f\n", t[1] * 1e3);
  std::printf("dense_prompt_vs_gemm %.3f\n", flops / gemm);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view filter = argc > 1 ? argv[1] : "";
  const auto wanted = [&](std::string_view name) { return name.find(filter) != std::string_view::npos; };
  std::printf("# %d threads, kernels: %s%s\n", bench::cores(), name_of(simd_level().used),
              simd_level().refused ? " (KVX_SIMD refused)" : "");
  if (wanted("dense_decode_vs_read") || wanted("dense_decode_ms")) decode();
  if (wanted("dense_prompt_vs_gemm") || wanted("dense_prompt_ms")) prompt();
}
