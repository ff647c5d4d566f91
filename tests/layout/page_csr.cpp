// Page tables in CSR form: what add and the accessors agree on, and that check names every entry that is out of its limits.

#include <kvx/core/element.hpp>
#include <kvx/layout/page_csr.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

using namespace kvx;

static_assert(std::is_trivially_copyable_v<paged_view<half>>);

namespace {

constexpr std::int64_t page_tokens = 4, pool = 9;

/// Sequences of 5, 0 and 8 tokens.
page_csr three() {
  page_csr csr;
  csr.add(std::vector<std::int32_t>{7, 2}, 5, page_tokens);
  csr.add({}, 0, page_tokens);
  csr.add(std::vector<std::int32_t>{8, 7}, 8, page_tokens);
  return csr;
}

/// What check says; empty where it accepts.
std::string complaint(const page_csr& csr) {
  try {
    check(csr, page_tokens, pool, call_site::here());
  } catch (const usage_error& error) {
    const std::string text = error.what();
    return text.substr(text.find(": ") + 2);
  }
  return "";
}

}  // namespace

TEST_CASE("arrays are those of FlashInfer") {
  const page_csr csr = three();
  CHECK(csr.indptr == std::vector<std::int32_t>{0, 2, 2, 4});
  CHECK(csr.indices == std::vector<std::int32_t>{7, 2, 8, 7});
  CHECK(csr.last_page_len == std::vector<std::int32_t>{1, 0, 4});
  CHECK(csr.sequences() == 3);
  CHECK(complaint(csr) == "");
  CHECK(complaint(page_csr{}) == "");
}

TEST_CASE("lengths survive, for every fill of the last page") {
  for (std::int64_t n = 0; n <= 3 * page_tokens; ++n) {
    page_csr csr;
    const std::vector<std::int32_t> pages = {3, 1, 5};
    csr.add(std::span(pages).first(static_cast<std::size_t>((n + page_tokens - 1) / page_tokens)), n, page_tokens);
    CHECK(csr.length(0, page_tokens) == n);
    CHECK(csr.last_page_len[0] == (n == 0 ? 0 : (n - 1) % page_tokens + 1));
    CHECK(complaint(csr) == "");
    row_view<const half> rows;
    rows.page_tokens = page_tokens;
    CHECK(view_of(rows, csr).length(0) == n);
  }
}

TEST_CASE("the view finds the row of every token") {
  const page_csr csr = three();
  std::vector<float> data(static_cast<std::size_t>(pool * 2 * page_tokens * 3));
  const row_view<const float> rows = {{data.data(), 24, 12, 3}, {data.data() + 2, 24, 12, 3}, 2, page_tokens, 2, 1};
  const paged_view<float> view = view_of(rows, csr);
  CHECK(view.sequences == 3);
  for (const std::int64_t b : {0, 2}) {
    for (std::int64_t t = 0; t < view.length(b); ++t) {
      const std::int64_t page = csr.pages(b)[static_cast<std::size_t>(t / page_tokens)];
      CHECK(view.key(b, 1, t) == data.data() + page * 24 + 12 + t % page_tokens * 3);
      CHECK(view.value(b, 1, t) == view.key(b, 1, t) + 2);
    }
  }
}

TEST_CASE("tables from elsewhere: the first entry out of its limits is named") {
  struct wrong {
    const char* text;
    void (*change)(page_csr&);
  };
  const wrong all[] = {
      {"size of indptr is 0, allowed are 4 to 4", [](page_csr& x) { x.indptr.clear(); }},
      {"size of indptr is 3, allowed are 4 to 4", [](page_csr& x) { x.indptr.pop_back(); }},
      {"size of indptr is 4, allowed are 5 to 5", [](page_csr& x) { x.last_page_len.push_back(1); }},
      {"indptr[0] is 1, allowed are 0 to 0", [](page_csr& x) { x.indptr[0] = 1; }},
      {"last entry of indptr is 4, allowed are 5 to 5", [](page_csr& x) { x.indices.push_back(0); }},
      {"last entry of indptr is 5, allowed are 4 to 4", [](page_csr& x) { x.indptr[3] = 5; }},
      {"an entry of indptr is 1, allowed are 2 to 4", [](page_csr& x) { x.indptr[2] = 1; }},
      {"an entry of indptr is -1, allowed are 0 to 4", [](page_csr& x) { x.indptr[1] = -1; }},
      {"an entry of indptr is 5, allowed are 0 to 4", [](page_csr& x) { x.indptr[1] = 5; }},
      {"an entry of last_page_len is 0, allowed are 1 to 4", [](page_csr& x) { x.last_page_len[0] = 0; }},
      {"an entry of last_page_len is 5, allowed are 1 to 4", [](page_csr& x) { x.last_page_len[2] = 5; }},
      {"an entry of last_page_len is 1, allowed are 0 to 0", [](page_csr& x) { x.last_page_len[1] = 1; }},
      {"an entry of indices is 9, allowed are 0 to 8", [](page_csr& x) { x.indices[3] = 9; }},
      {"an entry of indices is -1, allowed are 0 to 8", [](page_csr& x) { x.indices[0] = -1; }},
  };
  for (const wrong& w : all) {
    page_csr csr = three();
    w.change(csr);
    CHECK(complaint(csr) == w.text);
  }
  page_csr nothing;
  nothing.indptr.clear();
  CHECK(complaint(nothing) == "size of indptr is 0, allowed are 1 to 1");
}
