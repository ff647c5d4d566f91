// Views address what their strides say, and shapes that do not fit are refused by name.

#include <kvx/core/tensor_view.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace {

using kvx::tensor_view;

std::string refusal(const tensor_view<const float, 3>& view, const std::int64_t (&extents)[3]) {
  try {
    kvx::require_shape("k", view, extents, {"a.cpp", 1});
  } catch (const kvx::usage_error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("dense views count row by row") {
  std::vector<int> x(2 * 3 * 5);
  const tensor_view<int, 3> view(x.data(), 2, 3, 5);
  int* expected = x.data();
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 3; ++j) {
      for (int k = 0; k < 5; ++k) CHECK(view.at(i, j, k) == expected++);
    }
  }
}

TEST_CASE("strides are the caller's: transposed, reversed, beyond 32 bits") {
  int x[6] = {0, 1, 2, 3, 4, 5};
  tensor_view<int, 2> view(x, 3, 2);
  view.strides[0] = 1;
  view.strides[1] = 3;
  CHECK(*view.at(2, 1) == 5);
  CHECK(*view.at(0, 1) == 3);
  view.data = x + 5;
  view.strides[0] = -1;
  view.strides[1] = -3;
  CHECK(*view.at(2, 1) == 0);

  tensor_view<char, 2> wide;
  wide.data = reinterpret_cast<char*>(std::uintptr_t{65536});  // an address; nothing is read
  wide.strides[0] = 524288;
  wide.strides[1] = 1;
  CHECK(reinterpret_cast<std::uintptr_t>(wide.at(8192, 7)) == 65536 + 4294967303u);
}

TEST_CASE("read-only views are the same view") {
  float x[4] = {};
  const tensor_view<float, 1> view(x, 4);
  CHECK(kvx::read_only(view).at(3) == x + 3);
  CHECK(kvx::read_only(kvx::read_only(view)).at(3) == x + 3);
}

TEST_CASE("a wrong extent is named with its dimension; null is refused unless nothing is there") {
  float x[24] = {};
  const tensor_view<const float, 3> view(x, 2, 3, 4);
  CHECK(refusal(view, {2, 3, 4}) == "");
  CHECK(refusal(view, {1, 3, 4}) == "a.cpp:1: extent 0 of k is 2, allowed are 1 to 1");
  CHECK(refusal(view, {2, 4, 4}) == "a.cpp:1: extent 1 of k is 3, allowed are 4 to 4");
  CHECK(refusal(view, {2, 3, 5}) == "a.cpp:1: extent 2 of k is 4, allowed are 5 to 5");
  const float* none = nullptr;
  CHECK(refusal(tensor_view<const float, 3>(none, 2, 3, 4), {2, 3, 4}) == "a.cpp:1: k is null");
  CHECK(refusal(tensor_view<const float, 3>(none, 0, 3, 4), {0, 3, 4}) == "");
}
