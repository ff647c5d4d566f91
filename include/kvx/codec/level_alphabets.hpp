#pragma once
// Static alphabets for the levels of a bit plan, counted on calibration data: what lets rANS code the faithful mode.

#include <kvx/codec/bit_plan.hpp>
#include <kvx/codec/component_matrix.hpp>
#include <kvx/codec/rans.hpp>
#include <kvx/core/check.hpp>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace kvx {

/// Where a level of so many bits lies in an alphabet: eight bits are four of a symbol and four raw ones.
constexpr symbol_range range_of_levels(int bits) { return {0, 255, static_cast<std::uint8_t>(bits == 8 ? 4 : 0)}; }

/// Counts of the levels of each component, and the alphabets that follow.
///
/// what        every level that a component can have gets a count of 1 to begin with, so that nothing needs an escape; components that are
///             not stored have one symbol, which costs nothing
/// shapes      frequencies (components of the plan): what a calibration file holds
/// exactness   integers
class level_counts {
 public:
  explicit level_counts(const bit_plan& plan) : bits_(static_cast<std::size_t>(plan.components())), counts_(bits_.size()) {
    std::size_t c = 0;
    for (const bit_run& run : plan.runs) {
      for (std::int32_t i = 0; i < run.size; ++i, ++c) {
        bits_[c] = run.bits;
        const int symbols = run.bits == 0 ? 1 : run.bits == 8 ? alphabet_size : 1 << run.bits;
        for (int s = 0; s < symbols; ++s) counts_[c].of[s] = 1;
      }
    }
  }

  /// errors      usage_error: levels of other components than the plan's
  void add(const component_matrix<const std::int16_t>& levels, call_site where = call_site::here()) {
    require(levels.components == static_cast<std::int64_t>(bits_.size()), "level_counts: levels are those of the plan", where);
    for (std::size_t c = 0; c < bits_.size(); ++c) {
      if (bits_[c] == 0) continue;
      const int raw = range_of_levels(bits_[c]).raw_bits;
      const std::int16_t* const v = levels.component(static_cast<std::int64_t>(c));
      for (std::int32_t t = 0; t < levels.tokens; ++t) ++counts_[c].of[v[t] >> raw & (alphabet_size - 1)];
    }
  }

  std::vector<symbol_frequencies> frequencies() const {
    std::vector<symbol_frequencies> all;
    all.reserve(counts_.size());
    for (const counts& c : counts_) all.push_back(normalised(c.of));
    return all;
  }

 private:
  struct counts {
    std::uint64_t of[alphabet_size] = {};
  };
  std::vector<int> bits_;
  std::vector<counts> counts_;
};

/// The look-up tables of such frequencies.
///
/// errors      usage_error: other components than the plan's, or frequencies that do not add up
class level_alphabets {
 public:
  level_alphabets(const bit_plan& plan, std::span<const symbol_frequencies> frequencies, call_site where = call_site::here())
      : table_of_(frequencies.size()) {
    require(static_cast<std::int64_t>(frequencies.size()) == plan.components() && frequencies.size() <= 65536,
            "level_alphabets: frequencies of the plan's components, 65,536 at most", where);
    lookups_.reserve(frequencies.size());
    for (const bit_run& run : plan.runs) {
      for (std::int32_t i = 0; i < run.size; ++i) {
        const symbol_frequencies& f = frequencies[lookups_.size()];
        require(sums_to_one(f), "level_alphabets: frequencies add up to 4096", where);
        lookups_.push_back(make_lookup(f, range_of_levels(run.bits)));
      }
    }
    std::iota(table_of_.begin(), table_of_.end(), std::uint16_t{0});
  }

  symbol_model model() const { return {lookups_.data(), table_of_.data(), static_cast<std::int64_t>(table_of_.size())}; }

 private:
  std::vector<symbol_lookup> lookups_;
  std::vector<std::uint16_t> table_of_;
};

}  // namespace kvx
