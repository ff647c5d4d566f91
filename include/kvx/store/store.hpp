#pragma once
// What a store is: bytes under keys, replaced as a whole, read in pieces.

#include <kvx/core/digest.hpp>
#include <kvx/core/status.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvx {

/// A place for frames. It knows bytes and keys alone.
///
/// put         keeps the bytes under the key, in place of what was there: whoever reads sees the old bytes or the new, never a mixture,
///             whatever happens to the writer
/// open        a reader of what is there now; it goes on reading that, also when the key is put or erased meanwhile. not_found
/// reader      size() bytes; read(offset, out) fills all of out, or truncated, io
/// erase       not_found where there is nothing
/// list        all keys, in any order
template <class S>
concept store = std::default_initializable<typename S::reader> &&
                requires(S& s, const S& reading, typename S::reader& reader, const digest& key, std::span<const std::byte> bytes,
                         std::span<std::byte> out, std::vector<digest>& keys) {
                  { s.put(key, bytes) } -> std::same_as<status>;
                  { reading.open(key, reader) } -> std::same_as<status>;
                  { reader.size() } -> std::same_as<std::uint64_t>;
                  { reader.read(std::uint64_t{}, out) } -> std::same_as<status>;
                  { s.erase(key) } -> std::same_as<status>;
                  { reading.list(keys) } -> std::same_as<status>;
                };

/// All bytes under a key, where they are not more than `most`.
template <store S>
status read_all(const S& from, const digest& key, std::uint64_t most, std::vector<std::byte>& bytes) {
  typename S::reader reader;
  const status opened = from.open(key, reader);
  if (!opened.ok()) return opened;
  if (reader.size() > most) return {status::code::no_space, "store: more bytes than allowed"};
  bytes.resize(static_cast<std::size_t>(reader.size()));
  return reader.read(0, bytes);
}

}  // namespace kvx
