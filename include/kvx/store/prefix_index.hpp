#pragma once
// Which stored sequence begins like a given one: an index in memory that compares tokens themselves.

#include <kvx/codec/frame.hpp>
#include <kvx/store/key.hpp>
#include <kvx/store/store.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace kvx {

/// A stored sequence that shares its first `common` tokens with the one that was asked for.
struct prefix_match {
  digest key;
  std::int64_t common = 0;
  std::int64_t stored = 0;
};

/// Stored sequences of any number of families, in the order of their tokens: the longest common prefix stands beside the place where the
/// asked sequence would stand.
///
/// cost        memory 4 bytes a token; a look-up compares log2(sequences) times as many tokens as agree
/// exactness   tokens are compared, not hashes: no collision can return another prompt's rows
class prefix_index {
 public:
  void insert(const digest& family, std::span<const std::int32_t> tokens, const digest& key) {
    families_[family].insert_or_assign(std::vector<std::int32_t>(tokens.begin(), tokens.end()), key);
  }

  void erase(const digest& family, std::span<const std::int32_t> tokens) {
    const auto at = families_.find(family);
    if (at == families_.end()) return;
    at->second.erase(std::vector<std::int32_t>(tokens.begin(), tokens.end()));
    if (at->second.empty()) families_.erase(at);
  }

  /// The stored sequence with the longest common prefix, of these one that ends soonest among the neighbours; none where no first token
  /// agrees.
  std::optional<prefix_match> longest(const digest& family, std::span<const std::int32_t> tokens) const {
    const auto found = families_.find(family);
    if (found == families_.end()) return {};
    const auto& sequences = found->second;
    const auto after = sequences.lower_bound(std::vector<std::int32_t>(tokens.begin(), tokens.end()));
    std::optional<prefix_match> best;
    const auto consider = [&](const auto& at) {
      const std::vector<std::int32_t>& stored = at->first;
      const auto common = std::mismatch(stored.begin(), stored.end(), tokens.begin(), tokens.end()).first - stored.begin();
      const prefix_match match{at->second, static_cast<std::int64_t>(common), static_cast<std::int64_t>(stored.size())};
      if (common == 0) return;
      if (!best || match.common > best->common) best = match;
    };
    if (after != sequences.end()) consider(after);
    if (after != sequences.begin()) consider(std::prev(after));
    if (!best || best->stored == best->common) return best;
    const auto whole = sequences.find(std::vector<std::int32_t>(tokens.begin(), tokens.begin() + best->common));
    if (whole != sequences.end()) best = {whole->second, best->common, best->common};
    return best;
  }

  /// For each length of a common prefix the stored sequence that ends soonest: the longest prefix first.
  ///
  /// cost        of all sequences whose first token agrees
  std::vector<prefix_match> all(const digest& family, std::span<const std::int32_t> tokens) const {
    std::map<std::int64_t, prefix_match, std::greater<>> by_length;
    const auto found = families_.find(family);
    if (found == families_.end() || tokens.empty()) return {};
    const auto& sequences = found->second;
    for (auto at = sequences.lower_bound({tokens.front()}); at != sequences.end() && at->first.front() == tokens.front(); ++at) {
      const std::vector<std::int32_t>& stored = at->first;
      const auto common = std::mismatch(stored.begin(), stored.end(), tokens.begin(), tokens.end()).first - stored.begin();
      const prefix_match match{at->second, static_cast<std::int64_t>(common), std::ssize(stored)};
      const auto [best, first] = by_length.emplace(match.common, match);
      if (!first && match.stored < best->second.stored) best->second = match;
    }
    std::vector<prefix_match> result;
    for (const auto& [length, match] : by_length) result.push_back(match);
    return result;
  }

 private:
  std::map<digest, std::map<std::vector<std::int32_t>, digest>> families_;
};

/// Enters the frames of a store that belong to a salt: those whose key is the digest of what they say about themselves. Others, and damaged
/// ones, are left out.
///
/// cost        reads the front and the token ids of every frame
template <store S>
status index_store(const S& from, std::string_view salt, prefix_index& index) {
  std::vector<digest> keys;
  const status listed = from.list(keys);
  if (!listed.ok()) return listed;
  for (const digest& key : keys) {
    typename S::reader reader;
    if (!from.open(key, reader).ok()) continue;
    std::vector<std::byte> front(static_cast<std::size_t>(std::min<std::uint64_t>(reader.size(), sizeof(frame_header))));
    frame_header header;
    if (!reader.read(0, front).ok() || !read_frame_header(front, reader.size(), header).ok()) continue;
    front.resize(static_cast<std::size_t>(frame_front_bytes(header.sections)));
    frame_view view;
    if (!reader.read(0, front).ok() || !open_frame(front, reader.size(), view).ok()) continue;
    if (header.first_token != 0) continue;  // it continues a sequence, and begins no prompt
    for (const frame_section& s : view.sections) {
      if (s.kind != section_kind::token_ids || s.bytes != header.tokens * sizeof(std::int32_t)) continue;
      std::vector<std::byte> payload(static_cast<std::size_t>(s.bytes));
      if (!reader.read(s.offset, payload).ok() || !check_section(s, payload).ok()) continue;
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(header.tokens));
      if (!payload.empty()) std::memcpy(tokens.data(), payload.data(), payload.size());
      const digest family = family_digest(family_of(header, salt));
      if (key_of(family, tokens) == key) index.insert(family, tokens, key);
    }
  }
  return {};
}

}  // namespace kvx
