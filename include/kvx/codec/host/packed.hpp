#pragma once
// Ranges and levels of a bit plan on the host: quantised, packed, unpacked, and turned back into coefficients.

#include <kvx/backend/host.hpp>
#include <kvx/codec/component_matrix.hpp>
#include <kvx/codec/packed.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/status.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace kvx {

/// Calls f(run, first component, number among the stored runs) for every stored run.
template <class F>
void for_each_stored_run(const bit_plan& plan, const F& f) {
  std::int64_t first = 0, number = 0;
  for (const bit_run& run : plan.runs) {
    if (run.bits > 0) f(run, first, number++);
    first += run.size;
  }
}

/// Quantises coefficients by a plan.
///
/// shapes      coefficients, levels (components of the plan, tokens); ranges (stored runs, tokens) dense. Levels of runs that are not
///             stored become 0
/// exactness   the same levels everywhere; see level_of
/// errors      unfit: NaN, infinity, or a range beyond half. usage_error: shapes that do not fit the plan
inline status quantise(const host&, const bit_plan& plan, const component_matrix<const float>& coefficients,
                       const component_matrix<std::int16_t>& levels, std::span<run_range> ranges, call_site where = call_site::here()) {
  const std::int32_t tokens = coefficients.tokens;
  require(coefficients.components >= plan.components() && levels.components == plan.components() && levels.tokens == tokens,
          "quantise: levels and coefficients are those of the plan", where);
  require(static_cast<std::int64_t>(ranges.size()) == plan.stored_runs() * tokens, "quantise: a range for every stored run and token",
          where);
  bool fits = true;
  std::int64_t first = 0, number = 0;
  for (const bit_run& run : plan.runs) {
    for (std::int32_t t = 0; t < tokens; ++t) {
      const float* const x = coefficients.component(first) + t;
      std::int16_t* const out = levels.component(first) + t;
      float low = x[0], high = x[0];
      bool finite = true;
      for (std::int64_t c = 0; c < run.size; ++c) {
        const float value = x[c * coefficients.pitch];
        finite = finite && value - value == 0;
        low = std::min(low, value);
        high = std::max(high, value);
      }
      const run_range range = run.bits > 0 && finite ? make_range(low, high, run.bits) : run_range{};
      fits = fits && finite && is_finite(range);
      if (run.bits > 0) ranges[static_cast<std::size_t>(number * tokens + t)] = range;
      for (std::int64_t c = 0; c < run.size; ++c) {
        const std::int32_t level = run.bits > 0 && finite ? level_of(x[c * coefficients.pitch], range, run.bits) : 0;
        out[c * levels.pitch] = static_cast<std::int16_t>(level);
      }
    }
    first += run.size;
    number += run.bits > 0 ? 1 : 0;
  }
  return fits ? status{} : status{status::code::unfit, "coefficients beyond half"};
}

/// Coefficients of levels; see quantise. Those of runs that are not stored become 0.
inline void dequantise(const host&, const bit_plan& plan, const component_matrix<const std::int16_t>& levels,
                       std::span<const run_range> ranges, const component_matrix<float>& coefficients,
                       call_site where = call_site::here()) {
  const std::int32_t tokens = levels.tokens;
  require(coefficients.components >= plan.components() && levels.components == plan.components() && coefficients.tokens == tokens,
          "dequantise: levels and coefficients are those of the plan", where);
  require(static_cast<std::int64_t>(ranges.size()) == plan.stored_runs() * tokens, "dequantise: a range for every stored run and token",
          where);
  std::int64_t first = 0, number = 0;
  for (const bit_run& run : plan.runs) {
    for (std::int64_t c = first; c < first + run.size; ++c) {
      float* const out = coefficients.component(c);
      if (run.bits == 0) {
        std::fill(out, out + tokens, 0.0f);
        continue;
      }
      const run_range* const of = ranges.data() + number * tokens;
      for (std::int32_t t = 0; t < tokens; ++t) out[t] = value_of(levels.component(c)[t], of[t]);
    }
    first += run.size;
    number += run.bits > 0 ? 1 : 0;
  }
  for (std::int64_t c = first; c < coefficients.components; ++c)
    std::fill(coefficients.component(c), coefficients.component(c) + tokens, 0.0f);
}

/// Numbers of up to 16 bits, one after the other.
class bit_writer {
 public:
  explicit bit_writer(std::byte* out) : out_(out) {}
  void put(std::uint32_t x, int bits) {
    held_ |= std::uint64_t{x} << count_;
    for (count_ += bits; count_ >= 8; count_ -= 8, held_ >>= 8) *out_++ = static_cast<std::byte>(held_ & 255);
  }
  void finish() {
    if (count_ > 0) *out_++ = static_cast<std::byte>(held_ & 255);
    count_ = 0;
    held_ = 0;
  }

 private:
  std::byte* out_;
  std::uint64_t held_ = 0;
  int count_ = 0;
};

/// The same numbers again; the caller knows how many there are.
class bit_reader {
 public:
  explicit bit_reader(const std::byte* in) : in_(in) {}
  std::uint32_t take(int bits) {
    for (; count_ < bits; count_ += 8) held_ |= std::to_integer<std::uint64_t>(*in_++) << count_;
    const auto x = static_cast<std::uint32_t>(held_ & ((std::uint64_t{1} << bits) - 1));
    held_ >>= bits;
    count_ -= bits;
    return x;
  }
  /// Whether the bits that fill the last byte are 0.
  bool rest_is_zero() const { return held_ == 0; }

 private:
  const std::byte* in_;
  std::uint64_t held_ = 0;
  int count_ = 0;
};

/// Calls range(run, number, token) and level(run, component, token) in the order of a packing.
template <class Range, class Level>
void for_each_packed(const bit_plan& plan, std::int32_t tokens, packing order, const Range& range, const Level& level) {
  if (order == packing::tokens) {
    for (std::int32_t t = 0; t < tokens; ++t) {
      for_each_stored_run(plan, [&](const bit_run& run, std::int64_t first, std::int64_t number) {
        range(number, t);
        for (std::int64_t c = first; c < first + run.size; ++c) level(run.bits, c, t);
      });
    }
  } else {
    for_each_stored_run(plan, [&](const bit_run&, std::int64_t, std::int64_t number) {
      for (std::int32_t t = 0; t < tokens; ++t) range(number, t);
    });
    for_each_stored_run(plan, [&](const bit_run& run, std::int64_t first, std::int64_t) {
      for (std::int64_t c = first; c < first + run.size; ++c) {
        for (std::int32_t t = 0; t < tokens; ++t) level(run.bits, c, t);
      }
    });
  }
}

/// Packs what quantise left; out (packed_bytes).
///
/// errors      no_space. usage_error: shapes that do not fit the plan
inline status pack(const host&, const bit_plan& plan, const component_matrix<const std::int16_t>& levels, std::span<const run_range> ranges,
                   packing order, std::span<std::byte> out, std::int64_t& bytes, call_site where = call_site::here()) {
  require(levels.components == plan.components(), "pack: levels are those of the plan", where);
  const std::int64_t needed = packed_bytes(plan, levels.tokens);
  bytes = 0;
  if (static_cast<std::int64_t>(out.size()) < needed) return {status::code::no_space, "packed levels"};
  bit_writer writer(out.data());
  for_each_packed(
      plan, levels.tokens, order,
      [&](std::int64_t number, std::int32_t t) {
        const run_range& r = ranges[static_cast<std::size_t>(number * levels.tokens + t)];
        writer.put(r.shift.bits, 16);
        writer.put(r.scale.bits, 16);
      },
      [&](int bits, std::int64_t c, std::int32_t t) { writer.put(static_cast<std::uint16_t>(levels.component(c)[t]), bits); });
  writer.finish();
  bytes = needed;
  return {};
}

/// The inverse of pack. Levels of runs that are not stored become 0.
///
/// errors      truncated, corrupt: other bytes than so many tokens have, bits after the last level, a range that is no number
inline status unpack(const host&, const bit_plan& plan, std::span<const std::byte> in, packing order,
                     const component_matrix<std::int16_t>& levels, std::span<run_range> ranges, call_site where = call_site::here()) {
  require(levels.components == plan.components(), "unpack: levels are those of the plan", where);
  const std::int64_t needed = packed_bytes(plan, levels.tokens);
  if (static_cast<std::int64_t>(in.size()) < needed) return {status::code::truncated, "packed levels"};
  if (static_cast<std::int64_t>(in.size()) > needed) return {status::code::corrupt, "packed levels: bytes after their end"};
  for (std::int64_t c = 0; c < levels.components; ++c) std::fill(levels.component(c), levels.component(c) + levels.tokens, std::int16_t{0});
  bit_reader reader(in.data());
  bool finite = true;
  for_each_packed(
      plan, levels.tokens, order,
      [&](std::int64_t number, std::int32_t t) {
        run_range r;
        r.shift.bits = static_cast<std::uint16_t>(reader.take(16));
        r.scale.bits = static_cast<std::uint16_t>(reader.take(16));
        finite = finite && is_finite(r);
        ranges[static_cast<std::size_t>(number * levels.tokens + t)] = r;
      },
      [&](int bits, std::int64_t c, std::int32_t t) { levels.component(c)[t] = static_cast<std::int16_t>(reader.take(bits)); });
  if (!finite) return {status::code::corrupt, "packed levels: a range"};
  if (!reader.rest_is_zero()) return {status::code::corrupt, "packed levels: bits after their end"};
  return {};
}

}  // namespace kvx
