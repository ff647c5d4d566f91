// Digests are SHA-256: published values, in any pieces; fields do not run together.

#include <kvx/core/digest.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

using namespace kvx;

namespace {

std::string of(std::string_view text, std::size_t piece) {
  sha256 hash;
  for (std::size_t i = 0; i < text.size(); i += piece) hash.add(std::as_bytes(std::span(text.substr(i, piece))));
  return to_hex(hash.finish());
}

}  // namespace

TEST_CASE("published values, in any pieces") {
  for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, std::size_t{64}, std::size_t{1000000}}) {
    CHECK(of("", piece) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(of("abc", piece) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", piece) ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  }
  CHECK(of(std::string(1000000, 'a'), 4096) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("other fields, other digests: names, values, order, borders, types") {
  std::set<digest> seen;
  const std::vector<std::int32_t> ids = {1, 2, 3};
  seen.insert(field_digest().finish());
  seen.insert(field_digest().add("a", "").finish());
  seen.insert(field_digest().add("", "a").finish());
  seen.insert(field_digest().add("a", "bc").finish());
  seen.insert(field_digest().add("ab", "c").finish());
  seen.insert(field_digest().add("a", "b").add("c", "").finish());
  seen.insert(field_digest().add("c", "").add("a", "b").finish());
  seen.insert(field_digest().add("a", 0).finish());
  seen.insert(field_digest().add("a", -1).finish());
  seen.insert(field_digest().add("a", std::span<const std::int32_t>(ids)).finish());
  seen.insert(field_digest().add("a", std::span<const std::int32_t>(ids).first(2)).finish());
  seen.insert(field_digest().add("a", digest{}).finish());
  CHECK(seen.size() == 12);
  CHECK(field_digest().add("a", 5).finish() == field_digest().add("a", std::int64_t{5}).finish());
}

TEST_CASE("the digest of a key is the same in every process: a value written down") {
  const std::vector<std::int32_t> ids = {1, 2, 3, 50000};
  const digest d = field_digest().add("model", "m").add("layers", 30).add("tokens", std::span<const std::int32_t>(ids)).finish();
  CHECK(to_hex(d) == "dff2c057ccdb0c61c4b1b369e9a4496e998112f68647e8bbc461720bf7a8ce38");
}
