#pragma once
// The settings of stored caches that are measured: one line each.

#include "grouped_rounding.hpp"

#include <array>
#include <string>
#include <string_view>

namespace quality {

/// What a setting is calibrated with; kept as <name>.kvxcal. `faithful8` and `faithful32` are of the fit of `faithful16`.
///
/// plan_ratio  nominal, of the bit plan; 0: a third of the layers a basis, and no plan
struct kvtc_calibration {
  std::string_view name;
  bool weighted = false;
  bool predicted = false;
  double plan_ratio = 0;
};
inline constexpr std::array kvtc_calibrations{
    kvtc_calibration{"weighted", true, false},        kvtc_calibration{"predicted", true, true},
    kvtc_calibration{"faithful16", false, false, 16}, kvtc_calibration{"faithful8", false, false, 8},
    kvtc_calibration{"faithful32", false, false, 32},
};

/// One way to store rows; printed as kl_<name>, top1_<name>, perplexity_<name>, ratio_<name>.
///
/// ratio       that all bytes are to reach, of entropy-first streams; a faithful stream's is that of its plan
struct kvtc_setting {
  enum class method { entropy_first, faithful, groups };
  std::string_view name;
  method how = method::entropy_first;
  std::string_view calibration = {};
  double ratio = 0;
  grouped_rounding groups = {};
  bool on_request = false;                                              // only where a filter names it

  /// Whether a filter asks for it: an empty one for all but those on request.
  bool wanted(std::string_view filter) const {
    if (filter.empty()) return !on_request;
    for (const char* of : {"kl_", "top1_", "perplexity_", "ratio_"}) {
      if ((of + std::string(name)).find(filter) != std::string::npos) return true;
    }
    return false;
  }
};

namespace kvtc_lines {

using how = kvtc_setting::method;
constexpr kvtc_setting ours(std::string_view name, std::string_view calibration, double ratio, bool on_request = false) {
  return {name, how::entropy_first, calibration, ratio, {}, on_request};
}
constexpr kvtc_setting paper(std::string_view name, std::string_view calibration, bool on_request = false) {
  return {name, how::faithful, calibration, 0, {}, on_request};
}
constexpr kvtc_setting groups(std::string_view name, int bits, std::int64_t group) {
  return {name, how::groups, {}, 0, {bits, group}, false};
}

}  // namespace kvtc_lines

inline constexpr std::array kvtc_settings{
    kvtc_lines::paper("faithful16", "faithful16"),
    kvtc_lines::ours("weighted_17x", "weighted", 17.5),
    kvtc_lines::groups("int4_g64", 4, 64),
    kvtc_lines::groups("int2_g32", 2, 32),
    kvtc_lines::groups("int2_g64", 2, 64),
    kvtc_lines::paper("sweep_faithful8", "faithful8", true),
    kvtc_lines::paper("sweep_faithful32", "faithful32", true),
    kvtc_lines::ours("sweep_unweighted_17x", "faithful16", 17.5, true),
    kvtc_lines::ours("sweep_unweighted_35x", "faithful16", 35, true),
    kvtc_lines::ours("sweep_predicted_12x", "predicted", 12, true),
    kvtc_lines::ours("sweep_predicted_42x", "predicted", 42, true),
    kvtc_lines::ours("sweep_weighted_24x", "weighted", 24, true),
    kvtc_lines::ours("weighted_35x", "weighted", 35),
    kvtc_lines::ours("predicted_20x", "predicted", 20),
    kvtc_lines::ours("predicted_27x", "predicted", 27),
    kvtc_lines::ours("predicted_35x", "predicted", 35),
    kvtc_lines::ours("sweep_weighted_12x", "weighted", 12, true),
    kvtc_lines::ours("sweep_weighted_42x", "weighted", 42, true),
    kvtc_lines::ours("sweep_unweighted_12x", "faithful16", 12, true),
    kvtc_lines::ours("sweep_unweighted_24x", "faithful16", 24, true),
};

}  // namespace quality
