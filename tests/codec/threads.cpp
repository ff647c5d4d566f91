// Chunks are the same bytes, and give the same rows, for any number of threads.

#include <support/span_case.hpp>
#include <support/thread_pool.hpp>

#include <kvx/codec/host/chain.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

struct chunk_and_rows {
  std::vector<std::byte> bytes;
  std::vector<float> rows;
  bool operator==(const chunk_and_rows&) const = default;
};

/// Rows through a codec and back.
template <class Codec>
chunk_and_rows through(const Codec& codec, const span_case& s, std::int64_t tokens, const host& exec) {
  const std::vector<float> rows = s.rows(tokens, 5);
  chunk_and_rows r;
  r.bytes.resize(static_cast<std::size_t>(chunk_bound<float>(tokens, s.rank)));
  r.rows.resize(rows.size());
  std::int64_t bytes = 0;
  CHECK(encode_chunk(exec, plain_products(), codec, s.model(), tensor_view<const float, 2>(rows.data(), tokens, s.rank), {}, 0, r.bytes,
                     bytes)
            .ok());
  r.bytes.resize(static_cast<std::size_t>(bytes));
  opened_chunk<float> chunk;
  REQUIRE((open_chunk<Codec, float>(exec, codec, s.model(), r.bytes, tokens, s.rank, chunk).ok()));
  restore_rows(exec, plain_products(), s.model(), chunk, {}, 0, tensor_view<float, 2>(r.rows.data(), tokens, s.rank));
  return r;
}

template <class Codec>
void check(const Codec& codec) {
  const span_case s(3, 32, 16);
  const chunk_and_rows one = through(codec, s, 130, {.threads = 1});
  CHECK(one.bytes.size() > 1000);
  for (const int threads : {2, 3}) CHECK(through(codec, s, 130, {.threads = threads, .parallel = std_threads()}) == one);
}

}  // namespace

TEST_CASE("any number of threads gives the same bytes and rows") {
  check(kvtc_entropy{});
  check(kvtc_faithful<rans>{});
  check(kvtc_faithful<fixed_width>{});
}
