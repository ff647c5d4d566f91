// Codebooks are the published tables, and stand still under Lloyd's iteration for every width and number of levels.

#include <kvx/sketch/codebook.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <vector>

namespace {

/// Density of |x|, up to a factor: a coordinate of a direction, or a normal variable.
double density(int width, double x) {
  if (width > kvx::widest_codebook) return std::exp(-x * x / 2);
  return std::pow((1 - x) * (1 + x), (width - 3) / 2.0);
}

/// Centroid between two borders by the midpoint rule, in the angle where the density has a pole at the end.
double centroid(int width, double low, double high) {
  const bool angle = width <= kvx::widest_codebook;
  const double a = angle ? std::asin(low) : low;
  const double b = angle ? std::asin(high) : high;
  double mass = 0;
  double moment = 0;
  for (int i = 0; i < 4000; ++i) {
    const double t = a + (b - a) * (i + 0.5) / 4000;
    const double x = angle ? std::sin(t) : t;
    const double p = angle ? std::pow(std::cos(t), width - 2) : density(width, x);
    mass += p;
    moment += p * x;
  }
  return moment / mass;
}

/// Largest distance of a level from the centroid of its cell, and of a border from the middle of its levels, in cell widths.
template <int Bits>
double distance_from_rest(int width) {
  const auto& book = kvx::codebook_for<Bits>(width);
  std::vector<double> borders = {0};
  for (const float t : book.squared_thresholds) borders.push_back(std::sqrt(static_cast<double>(t)));
  borders.push_back(width > kvx::widest_codebook ? 9 : 1);
  double worst = 0;
  for (std::size_t i = 0; i < book.levels.size(); ++i) {
    const double level = book.levels[i];
    CHECK(level > borders[i]);
    CHECK(level < borders[i + 1]);
    const double cell = i + 1 == book.levels.size() ? 2 * (level - borders[i]) : borders[i + 1] - borders[i];
    worst = std::fmax(worst, std::fabs(level - centroid(width, borders[i], borders[i + 1])) / cell);
    if (i > 0) worst = std::fmax(worst, std::fabs(borders[i] - (level + book.levels[i - 1]) / 2) / cell);
  }
  return worst;
}

}  // namespace

TEST_CASE("the published tables") {
  constexpr float levels4[] = {.056376f, .169369f, .283112f, .398201f, .515428f, .635982f, .762001f, .898741f};
  constexpr float levels8[] = {.042509f, .128044f, .215201f, .305324f, .400271f, .503022f, .619348f, .764835f};
  constexpr float levels16[] = {.031063f, .093716f, .158026f, .225389f, .297798f, .378546f, .474281f, .603895f};
  constexpr float thresholds8[] = {.085276f, .171622f, .260263f, .352798f, .451647f, .561185f, .692091f};
  for (std::size_t i = 0; i < 8; ++i) {
    CHECK(std::fabs(kvx::codebook_for<3>(4).levels[i] - levels4[i]) < 1e-6);
    CHECK(std::fabs(kvx::codebook_for<3>(8).levels[i] - levels8[i]) < 1e-6);
    CHECK(std::fabs(kvx::codebook_for<3>(16).levels[i] - levels16[i]) < 1e-6);
    if (i < 7) CHECK(std::fabs(std::sqrt(kvx::codebook_for<3>(8).squared_thresholds[i]) - thresholds8[i]) < 1e-6);
  }
  // Max 1960, table 1, 16 levels of a normal variable: outermost level 2.733, border 2.401
  CHECK(kvx::codebook_for<3>(64).levels[7] == doctest::Approx(2.733).epsilon(1e-3));
  CHECK(std::sqrt(kvx::codebook_for<3>(64).squared_thresholds[6]) == doctest::Approx(2.401).epsilon(1e-3));
}

TEST_CASE("every width: levels are centroids, borders lie midway") {
  for (int width = 2; width <= kvx::widest_codebook + 1; ++width) {
    CAPTURE(width);
    CHECK(distance_from_rest<1>(width) < 1e-5);
    CHECK(distance_from_rest<2>(width) < 1e-5);
    CHECK(distance_from_rest<3>(width) < 1e-5);
    CHECK(distance_from_rest<7>(width) < 1e-2);
  }
}

TEST_CASE("a direction of one coordinate is its sign") {
  for (const float level : kvx::codebook_for<3>(1).levels) CHECK(level == 1);
  for (const float threshold : kvx::codebook_for<3>(1).squared_thresholds) CHECK(threshold > 1);
}
