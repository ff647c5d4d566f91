// Pages of a fixed size: full but for a little, the error falls with the size, each decodes alone, and what does not fit is said.

#include <support/span_case.hpp>

#include <kvx/codec/host/page.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

const host exec;

double error_of(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
  return sum / static_cast<double>(a.size());
}

status encoded(const span_case& s, const std::vector<float>& rows, std::int64_t tokens, std::span<std::byte> page) {
  return encode_page(exec, plain_products(), kvtc_entropy{}, s.model(), tensor_view<const float, 2>(rows.data(), tokens, s.rank), {}, -1200,
                     page);
}

}  // namespace

TEST_CASE("every size is filled, and the error falls with it") {
  const span_case s(3, 32, 8, false);
  for (const std::int64_t tokens : {16, 64}) {
    const std::vector<float> rows = s.rows(tokens, 2);
    double before = 1e300;
    for (const std::int64_t share : {10, 16, 32, 50}) {  // bytes a token
      const auto size = static_cast<std::size_t>(share * tokens);
      CAPTURE(size);
      std::vector<std::byte> page(size, std::byte{7});
      REQUIRE(encoded(s, rows, tokens, page).ok());
      std::span<const std::byte> chunk;
      REQUIRE(chunk_of_page(page, chunk).ok());
      CHECK(chunk.size() >= page.size() * 9 / 10);
      opened_chunk<float> opened;
      REQUIRE(open_chunk(exec, kvtc_entropy{}, s.model(), chunk, tokens, s.rank, opened).ok());
      std::vector<float> back(rows.size());
      restore_rows(exec, plain_products(), s.model(), opened, {}, 0, tensor_view<float, 2>(back.data(), tokens, s.rank));
      const double error = error_of(rows, back);
      CHECK(error < before);
      before = error;
    }
  }
}

TEST_CASE("the step is the finest that fits") {
  const span_case s(2, 32, 8);
  const std::vector<float> rows = s.rows(40, 2);
  std::vector<float> coefficients(static_cast<std::size_t>(s.rank * 40));
  const std::int64_t kept = kept_components(kvtc_entropy{}, s.model(), -900);
  REQUIRE(project_rows(exec, plain_products(), s.model(), tensor_view<const float, 2>(rows.data(), 40, s.rank), {}, kept,
                       coefficients.data(), call_site::here()));
  const component_matrix<const float> all{coefficients.data(), kept, 40, 40};
  for (const std::size_t room : {300u, 500u, 900u, 2000u}) {
    std::vector<std::byte> out(room), finer(room);
    std::int64_t bytes = 0, ignored = 0;
    REQUIRE(encode_within(exec, kvtc_entropy{}, s.model(), all, -900, out, bytes).ok());
    chunk_header header;
    REQUIRE(read_header(out, header).ok());
    if (header.log2_step == -900) continue;
    component_matrix<const float> more = all;
    more.components = kept_components(kvtc_entropy{}, s.model(), header.log2_step - 8);
    CHECK(encode_coefficients(exec, kvtc_entropy{}, s.model(), more, header.log2_step - 8, finer, ignored) == status::code::no_space);
  }
}

TEST_CASE("damage, and rows that have no room") {
  const span_case s(2, 16, 8);
  std::vector<float> rows = s.rows(32, 2);
  std::vector<std::byte> page(600);
  REQUIRE(encoded(s, rows, 32, page).ok());
  std::span<const std::byte> chunk;
  for (std::size_t n = 0; n < 4; ++n) CHECK(chunk_of_page(std::span(page).first(n), chunk) == status::code::truncated);
  std::vector<std::byte> damaged = page;
  damaged[3] = std::byte{255};
  CHECK(chunk_of_page(damaged, chunk) == status::code::corrupt);
  damaged = page;
  damaged.back() = std::byte{1};
  if (page.back() == std::byte{0}) CHECK(chunk_of_page(damaged, chunk) == status::code::corrupt);
  CHECK(encoded(s, rows, 32, std::span(page).first(10)) == status::code::no_space);
  CHECK(encoded(s, rows, 32, std::span(page).first(28)).ok());  // every component left out: the mean
  rows[17] = std::numeric_limits<float>::quiet_NaN();
  CHECK(encoded(s, rows, 32, page) == status::code::unfit);
}
