#pragma once
// rANS streams on the host: the encoder, and the decoder around the kernel of this machine.

#include <kvx/backend/host.hpp>
#include <kvx/backend/simd/rans_dispatch.hpp>
#include <kvx/codec/rans.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/status.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

namespace kvx {

/// The words of one step of 32 lanes, collected from the last to the first without a branch, then put before those of later steps.
class step_words {
 public:
  void put(bool gives, std::uint32_t& x) {
    words_[next_ - 1] = static_cast<std::uint16_t>(x);
    next_ -= gives ? 1 : 0;
    x >>= gives ? 16 : 0;
  }
  /// False where there is no room between `first` and `next`, which moves down.
  bool flush(const std::byte* first, std::byte*& next) {
    const std::ptrdiff_t bytes = 2 * (most - next_);
    if (next - first < bytes) return false;
    next -= bytes;
    std::memcpy(next, words_ + next_, static_cast<std::size_t>(bytes));
    next_ = most;
    return true;
  }

 private:
  static constexpr int most = 2 * rans_lanes + 1;  // one is written and not kept
  std::uint16_t words_[most];
  std::ptrdiff_t next_ = most;
};

/// Writes the escapes of all values, in the order of the decoder, to the end of `out`.
inline status put_escapes(const symbol_model& model, const component_matrix<const std::int16_t>& values, std::span<std::byte> out,
                          std::int64_t& bytes) {
  std::vector<std::byte> all;
  for (std::int64_t c = 0; c < values.components; ++c) {
    const symbol_lookup& table = model.tables[model.table_of[c]];
    for (std::int32_t t = 0; t < values.tokens; ++t) {
      const symbol_of_value v = find_symbol(table, values.data[c * values.pitch + t]);
      if (!v.escaped) continue;
      if (table.escape >= alphabet_size) return {status::code::unfit, "a value without a symbol"};
      const std::uint32_t code = escape_code(v.distance);
      all.push_back(static_cast<std::byte>(code < 255 ? code : 255));
      if (code < 255) continue;
      all.push_back(static_cast<std::byte>(code & 255));
      all.push_back(static_cast<std::byte>(code >> 8));
    }
  }
  bytes = static_cast<std::int64_t>(all.size());
  if (all.size() > out.size()) return {status::code::no_space, "rANS stream"};
  if (!all.empty()) std::memcpy(out.data() + out.size() - all.size(), all.data(), all.size());
  return {};
}

/// Encodes values.
///
/// shapes      values (components, tokens) of the model; out at least rans_bound bytes, or fewer where no_space is an answer
/// exactness   integers: the same stream everywhere
/// cost        some 5 ns a value; one pass over the components to find escapes, one backwards to code. Allocates 8 KB for each alphabet in
///             use
/// errors      no_space: out is too short, and holds garbage; unfit: a value that its alphabet has no escape for. usage_error: values of
///             other components than the model's
inline status rans_encode(const host&, const symbol_model& model, const component_matrix<const std::int16_t>& values,
                          std::span<std::byte> out, std::int64_t& bytes, call_site where = call_site::here()) {
  require(values.components == model.components, "rans_encode: values and model differ in components", where);
  require(values.pitch >= values.tokens && values.tokens >= 0, "rans_encode: pitch is at least the tokens", where);
  bytes = 0;
  const std::int32_t lanes = rans_lanes_of(model.components, values.tokens);
  const std::int64_t front = rans_header_bytes + 4 * lanes;
  if (static_cast<std::int64_t>(out.size()) < front) return {status::code::no_space, "rANS stream"};
  std::int64_t escape_bytes = 0;
  const status escapes = put_escapes(model, values, out.subspan(static_cast<std::size_t>(front)), escape_bytes);
  if (!escapes.ok()) return escapes;
  std::byte* const words_end = out.data() + out.size() - escape_bytes;
  std::byte* next = words_end;
  step_words words;
  std::uint32_t x[rans_lanes];
  for (auto& state : x) state = rans_least;
  std::vector<std::unique_ptr<symbol_slots>> slots;
  const std::int32_t steps = static_cast<std::int32_t>(ceil_div(values.tokens, rans_lanes));
  for (std::int64_t c = model.components; c-- > 0;) {
    const std::size_t number = model.table_of[c];
    const symbol_lookup& table = model.tables[number];
    if (slots.size() <= number) slots.resize(number + 1);
    if (slots[number] == nullptr) {
      slots[number] = std::make_unique<symbol_slots>();
      make_slots(table, *slots[number]);
    }
    const symbol_slots& of = *slots[number];
    for (std::int32_t step = steps; step-- > 0;) {
      const std::int16_t* const first = values.data + c * values.pitch + std::int64_t{step} * rans_lanes;
      const std::int32_t active = values.tokens - step * rans_lanes < rans_lanes ? values.tokens - step * rans_lanes : rans_lanes;
      symbol_of_value v[rans_lanes];
      for (std::int32_t lane = 0; lane < active; ++lane) v[lane] = find_symbol(table, first[lane]);
      if (table.raw_bits > 0) {
        for (std::int32_t lane = active; lane-- > 0;) {
          words.put(x[lane] >> (32 - table.raw_bits) != 0, x[lane]);
          x[lane] = x[lane] << table.raw_bits | v[lane].raw;
        }
      }
      for (std::int32_t lane = active; lane-- > 0;) {
        words.put(gives_word(table, v[lane].symbol, x[lane]), x[lane]);
        x[lane] = put_symbol(table, of, v[lane].symbol, x[lane]);
      }
      if (!words.flush(out.data() + front, next)) return {status::code::no_space, "rANS stream"};
    }
  }
  const std::int64_t word_bytes = words_end - next;
  const std::uint32_t counts[2] = {static_cast<std::uint32_t>(word_bytes / 2), static_cast<std::uint32_t>(escape_bytes)};
  std::memmove(out.data() + front, next, static_cast<std::size_t>(word_bytes + escape_bytes));
  std::memcpy(out.data(), counts, sizeof counts);
  std::memcpy(out.data() + rans_header_bytes, x, static_cast<std::size_t>(4 * lanes));
  bytes = front + word_bytes + escape_bytes;
  return {};
}

/// Decodes a stream with a kernel of the caller's choice; see rans_decode.
inline status rans_decode_with(simd::rans_function kernel, const symbol_model& model, std::span<const std::byte> stream,
                               const component_matrix<std::int16_t>& values, call_site where = call_site::here()) {
  require(values.components == model.components, "rans_decode: values and model differ in components", where);
  require(values.tokens >= 0 && values.pitch >= symbol_pitch(values.tokens) && values.pitch % rans_lanes == 0,
          "rans_decode: pitch is a multiple of 32 and at least the tokens", where);
  const std::int32_t lanes = rans_lanes_of(model.components, values.tokens);
  const std::int64_t front = rans_header_bytes + 4 * lanes;
  const auto size = static_cast<std::int64_t>(stream.size());
  if (size < front) return {status::code::truncated, "rANS stream"};
  std::uint32_t counts[2];
  std::memcpy(counts, stream.data(), sizeof counts);
  const std::int64_t expected = front + 2 * std::int64_t{counts[0]} + counts[1];  // below 2^34
  if (size < expected) return {status::code::truncated, "rANS stream"};
  if (size > expected) return {status::code::corrupt, "rANS stream: bytes after its end"};
  std::uint32_t states[rans_lanes];
  for (auto& x : states) x = rans_least;
  std::memcpy(states, stream.data() + rans_header_bytes, static_cast<std::size_t>(4 * lanes));
  for (const std::uint32_t x : states) {
    if (x < rans_least) return {status::code::corrupt, "rANS stream: a state"};
  }
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(stream.data());
  simd::rans_job job{model.tables, model.table_of, model.components, values.tokens, values.data, values.pitch, states};
  job.words = bytes + front;
  job.words_end = job.escapes = job.words + 2 * std::int64_t{counts[0]};
  job.escapes_end = bytes + size;
  if (!kernel(job)) return {status::code::corrupt, "rANS stream"};
  for (const std::uint32_t x : states) {
    if (x != rans_least) return {status::code::corrupt, "rANS stream: a lane does not end where it began"};
  }
  return {};
}

/// Decodes a stream.
///
/// shapes      values (components, tokens), of the model and token count that the stream was made with; pitch a multiple of 32, and what
///             lies beyond the tokens of a component is overwritten
/// exactness   integers: the same values from every instruction set
/// cost        one look-up, one comparison and one product a value; 32 values side by side
/// errors      truncated or corrupt, and values hold garbage: never a read outside `stream`, never a value beyond +-32,767.
///             usage_error: values of other components than the model's
inline status rans_decode(const host&, const symbol_model& model, std::span<const std::byte> stream,
                          const component_matrix<std::int16_t>& values, call_site where = call_site::here()) {
  return rans_decode_with(simd::rans_kernel(), model, stream, values, where);
}

}  // namespace kvx
