#pragma once
// Which components get how many bits in the faithful mode: a dynamic program over runs of components.

#include <kvx/codec/quantize.hpp>
#include <kvx/core/check.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

namespace kvx {

/// Components side by side that share a range; 0 bits: they are not stored.
struct bit_run {
  std::int32_t size = 0;
  std::int32_t bits = 0;
  friend constexpr bool operator==(const bit_run&, const bit_run&) = default;
};

/// Bits of a run and token: a shift and a scale in half, and its levels.
constexpr std::int64_t bits_of(const bit_run& r) { return r.bits == 0 ? 0 : 32 + std::int64_t{r.size} * r.bits; }

/// Runs in the order of the components; those after the last run are not stored.
struct bit_plan {
  std::vector<bit_run> runs;

  std::int64_t components() const {
    std::int64_t n = 0;
    for (const bit_run& r : runs) n += r.size;
    return n;
  }
  std::int64_t stored_runs() const {
    return std::count_if(runs.begin(), runs.end(), [](const bit_run& r) { return r.bits > 0; });
  }
  std::int64_t bits_per_token() const {
    std::int64_t bits = 0;
    for (const bit_run& r : runs) bits += bits_of(r);
    return bits;
  }
  friend bool operator==(const bit_plan&, const bit_plan&) = default;
};

/// Sizes and widths that a plan may use.
struct plan_choices {
  std::vector<std::int32_t> sizes = {1, 16, 64, 256, 1024};
  std::vector<std::int32_t> widths = {0, 2, 4, 8};
};

/// The bits a token may take at a nominal ratio to 16-bit elements.
constexpr std::int64_t plan_budget(std::int64_t features, double ratio) {
  return static_cast<std::int64_t>(16.0 * static_cast<double>(features) / ratio);
}

/// The plan of least total error within a budget.
///
/// what        error(first, size, bits) of a run, for bits 0 the error of leaving it out; runs must cover all components, trailing runs
///             of 0 bits are cut off
/// exactness   the least sum of errors over all plans, sums in double; of equal plans the one whose last runs come first in the choices
/// cost        one error a run: components * sizes * widths; components * budget / unit * sizes * widths additions, unit the greatest
///             common divisor of the costs of runs (2 bits with the default choices); a byte a state and 8 bytes a state of the last 1,024
///             components: 16 MB + 24 MB for 5,760 components at 16 times
/// errors      usage_error: no components, a negative budget, no size of 1 (then a run may not fit), no width of 0
/// source      KVTC, section 3.2: components in order of variance, types none, 2, 4, 8 bits
template <class Error>
bit_plan plan_bits(std::int64_t components, std::int64_t budget, const plan_choices& choices, const Error& error,
                   call_site where = call_site::here()) {
  require(components >= 1, "plan_bits: there is at least one component", where);
  require(budget >= 0, "plan_bits: the budget is at least 0", where);
  const auto has = [](const std::vector<std::int32_t>& all, std::int32_t x) { return std::find(all.begin(), all.end(), x) != all.end(); };
  require(has(choices.sizes, 1) && has(choices.widths, 0), "plan_bits: runs of one component and of no bits are among the choices", where);
  require(choices.sizes.size() * choices.widths.size() < 255, "plan_bits: fewer than 255 kinds of runs", where);
  std::vector<bit_run> kinds;
  std::int64_t unit = 0;
  std::int32_t longest = 0;
  for (const std::int32_t size : choices.sizes) {
    require_range("plan_bits: size of a run", size, 1, 1 << 20, where);
    longest = std::max(longest, size);
    for (const std::int32_t bits : choices.widths) {
      require_range("plan_bits: bits of a run", bits, 0, 8, where);
      kinds.push_back({size, bits});
      unit = std::gcd(unit, bits_of(kinds.back()));
    }
  }
  if (unit == 0) unit = 1;
  const std::int64_t states = budget / unit + 1;
  const std::int64_t rows = std::min<std::int64_t>(longest, components) + 1;
  constexpr double never = std::numeric_limits<double>::infinity();
  constexpr std::uint8_t none = 255;
  // least[i % rows][b]: the least error of the first i components at b units; last[i][b]: the kind of their last run.
  std::vector<double> least(static_cast<std::size_t>(rows * states), never);
  std::vector<std::uint8_t> last(static_cast<std::size_t>((components + 1) * states), none);
  const auto row_of = [&](std::int64_t i) { return least.data() + i % rows * states; };
  row_of(0)[0] = 0;
  for (std::int64_t i = 1; i <= components; ++i) {
    double* const to = row_of(i);
    std::fill(to, to + states, never);
    std::uint8_t* const chosen = last.data() + i * states;
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      const bit_run& run = kinds[k];
      if (run.size > i) continue;
      const double e = error(i - run.size, std::int64_t{run.size}, run.bits);
      const std::int64_t cost = bits_of(run) / unit;
      const double* const from = row_of(i - run.size);
      for (std::int64_t b = cost; b < states; ++b) {
        const double sum = from[b - cost] + e;
        if (sum < to[b]) {
          to[b] = sum;
          chosen[b] = static_cast<std::uint8_t>(k);
        }
      }
    }
  }
  const double* const end = row_of(components);
  std::int64_t b = std::min_element(end, end + states) - end;
  bit_plan plan;
  for (std::int64_t i = components; i > 0;) {
    const bit_run run = kinds[last[static_cast<std::size_t>(i * states + b)]];
    if (run.bits > 0 || !plan.runs.empty()) plan.runs.push_back(run);
    i -= run.size;
    b -= bits_of(run) / unit;
  }
  std::reverse(plan.runs.begin(), plan.runs.end());
  return plan;
}

/// Squared error of a run on held-out coefficients, measured by quantising them.
///
/// shapes      coefficients (components, tokens) with `pitch` floats from one component to the next
/// exactness   sums in double in the order of tokens, then components
struct measured_run_error {
  const float* coefficients = nullptr;
  std::int64_t pitch = 0;
  std::int32_t tokens = 0;

  double operator()(std::int64_t first, std::int64_t size, std::int32_t bits) const {
    double sum = 0;
    for (std::int32_t t = 0; t < tokens; ++t) {
      const float* const x = coefficients + first * pitch + t;
      float low = x[0], high = x[0];
      for (std::int64_t c = 1; c < size; ++c) {
        low = std::min(low, x[c * pitch]);
        high = std::max(high, x[c * pitch]);
      }
      const run_range range = bits == 0 ? run_range{} : make_range(low, high, bits);
      for (std::int64_t c = 0; c < size; ++c) {
        const double off = static_cast<double>(x[c * pitch]) -
                           (bits == 0 ? 0.0 : static_cast<double>(value_of(level_of(x[c * pitch], range, bits), range)));
        sum += off * off;
      }
    }
    return sum;
  }
};

}  // namespace kvx
