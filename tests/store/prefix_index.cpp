// The longest stored prefix equals a search of all sequences; keys keep families apart; an index comes back from a store, without what does
// not belong.

#include <kvx/store/memory_store.hpp>
#include <kvx/store/prefix_index.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string_view>
#include <vector>

using namespace kvx;

namespace {

using tokens = std::vector<std::int32_t>;

tokens random_tokens(std::mt19937& random, std::size_t most) {
  tokens x(random() % (most + 1));
  for (auto& t : x) t = static_cast<std::int32_t>(random() % 3) - 1;
  return x;
}

std::int64_t common_prefix(const tokens& a, const tokens& b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

frame_header header(std::uint32_t layers) {
  frame_header h;
  h.model = field_digest().add("model", "m").finish();
  h.layers = layers;
  h.kv_heads = 1;
  return h;
}

digest put_sequence(memory_store& s, frame_header h, const tokens& ids, std::string_view salt) {
  h.tokens = ids.size();
  frame_writer writer(h, 1);
  frame_section section;
  section.kind = section_kind::token_ids;
  section.tokens = static_cast<std::uint32_t>(ids.size());
  writer.add(section, std::as_bytes(std::span(ids)));
  const digest key = key_of(family_digest(family_of(h, salt)), ids);
  REQUIRE(s.put(key, writer.finish()).ok());
  return key;
}

}  // namespace

TEST_CASE("the longest common prefix, against a search of all sequences") {
  std::mt19937 random(1);
  const digest family = field_digest().add("f", 1).finish();
  for (int round = 0; round < 300; ++round) {
    prefix_index index;
    std::vector<tokens> all;
    for (auto n = random() % 12; n > 0; --n) {
      all.push_back(random_tokens(random, 8));
      index.insert(family, all.back(), key_of(family, all.back()));
    }
    if (!all.empty() && random() % 3 == 0) {
      const tokens gone = all[random() % all.size()];
      index.erase(family, gone);
      std::erase(all, gone);
    }
    for (int query = 0; query < 20; ++query) {
      const tokens asked = random_tokens(random, 10);
      std::int64_t longest = 0;
      for (const tokens& t : all) longest = std::max(longest, common_prefix(t, asked));
      const auto match = index.longest(family, asked);
      REQUIRE(match.has_value() == (longest > 0));
      if (!match) continue;
      CHECK(match->common == longest);
      const auto at = std::find_if(all.begin(), all.end(), [&](const tokens& t) { return key_of(family, t) == match->key; });
      REQUIRE(at != all.end());
      CHECK(common_prefix(*at, asked) == longest);
      CHECK(match->stored == static_cast<std::int64_t>(at->size()));
      // All of them: each length of a common prefix once, descending, with the shortest sequence that shares so much.
      std::map<std::int64_t, std::int64_t, std::greater<>> expected;
      for (const tokens& t : all) {
        const std::int64_t common = common_prefix(t, asked), size = std::ssize(t);
        if (common > 0) expected[common] = expected.count(common) > 0 ? std::min(expected[common], size) : size;
      }
      const auto matches = index.all(family, asked);
      REQUIRE(matches.size() == expected.size());
      std::size_t next = 0;
      for (const auto& [common, stored] : expected) {
        CHECK(matches[next].common == common);
        CHECK(matches[next].stored == stored);
        const auto named = std::find_if(all.begin(), all.end(), [&](const tokens& t) { return key_of(family, t) == matches[next].key; });
        REQUIRE(named != all.end());
        CHECK(common_prefix(*named, asked) == common);
        CHECK(std::ssize(*named) == stored);
        ++next;
      }
    }
    CHECK_FALSE(index.longest({}, tokens{0, 1}).has_value());
    CHECK(index.all({}, tokens{0, 1}).empty());
    CHECK(index.all(family, tokens{}).empty());
  }
}

TEST_CASE("a sequence that is stored whole is found whole, and not through a longer one") {
  prefix_index index;
  const digest family{};
  index.insert(family, tokens{1, 2, 3}, key_of(family, tokens{1, 2, 3}));
  index.insert(family, tokens{1, 2, 3, 4, 5}, key_of(family, tokens{1, 2, 3, 4, 5}));
  CHECK(index.longest(family, tokens{1, 2, 3})->stored == 3);
  CHECK(index.longest(family, tokens{1, 2, 3, 9})->stored == 3);
  CHECK(index.longest(family, tokens{1, 2, 3, 4})->common == 4);
}

TEST_CASE("keys: other model, layout, calibration, salt or tokens, another key") {
  const key_family base{field_digest().add("m", 1).finish(), layout_digest(header(2)), {}, "salt"};
  std::set<digest> seen;
  const auto add = [&](const auto& change) {
    key_family f = base;
    change(f);
    seen.insert(key_of(family_digest(f), tokens{1, 2}));
  };
  add([](key_family&) {});
  add([](key_family& f) { f.model = {}; });
  add([](key_family& f) { f.layout = layout_digest(header(3)); });
  add([](key_family& f) { f.calibration.bytes[0] = 1; });
  add([](key_family& f) { f.salt = "other"; });
  add([](key_family& f) { std::swap(f.model, f.calibration); });
  seen.insert(key_of(family_digest(base), tokens{1, 2, 0}));
  seen.insert(key_of(family_digest(base), tokens{1}));
  CHECK(seen.size() == 8);
  frame_header h = header(2);
  const digest layout = layout_digest(h);
  h.value_dim = 5;
  CHECK(layout_digest(h) != layout);
  h = header(2);
  h.tokens = 77;  // no part of a layout
  CHECK(layout_digest(h) == layout);
}

TEST_CASE("an index from a store: its own salt alone, no damaged frame, none under a false key") {
  memory_store s;
  const digest family = family_digest(family_of(header(2), "mine"));
  const digest good = put_sequence(s, header(2), {5, 6, 7}, "mine");
  put_sequence(s, header(2), {5, 6, 7, 8}, "theirs");
  put_sequence(s, header(3), {5, 6, 7, 8}, "mine");
  std::vector<std::byte> bytes;
  REQUIRE(read_all(s, put_sequence(s, header(2), {5, 6, 7, 8, 9}, "mine"), 10000, bytes).ok());
  const digest damaged = key_of(family, tokens{5, 6, 7, 8, 9}), false_key = key_of(family, tokens{5, 6, 7, 8, 1});
  REQUIRE(s.put(false_key, bytes).ok());
  bytes.back() ^= std::byte{1};
  REQUIRE(s.put(damaged, bytes).ok());
  REQUIRE(s.put(key_of(family, tokens{1}), std::vector<std::byte>(20)).ok());
  prefix_index index;
  REQUIRE(index_store(s, "mine", index).ok());
  const auto match = index.longest(family, tokens{5, 6, 7, 8, 9, 10});
  REQUIRE(match.has_value());
  CHECK(match->key == good);
  CHECK(match->common == 3);
  CHECK_FALSE(index.longest(family, tokens{1}).has_value());
}
