#pragma once
// Lloyd-Max codebooks for the coordinates of a direction, computed at compile time from its number of coordinates.

#include <kvx/sketch/direction_density.hpp>

#include <array>
#include <cstddef>
#include <utility>

namespace kvx {

/// Directions of more coordinates than this share the codebook of their limit, the normal distribution.
inline constexpr int widest_codebook = 16;

/// Levels and thresholds of |x|, x a coordinate of a unit direction of `width` coordinates, in 2^bits cells.
///
/// levels              centroid of each cell, ascending
/// squared_thresholds  square of the border between cells i and i + 1: what is compared is x^2, so that nothing is divided or rooted
/// units               of a unit direction; of the normal limit (width > widest_codebook): of a coordinate with mean square 1
template <int Bits>
struct codebook {
  std::array<float, (1u << Bits)> levels{};
  std::array<float, (1u << Bits) - 1> squared_thresholds{};
};

/// Cell borders and centroids while they are computed: borders[i] lies between the centroids i - 1 and i.
template <std::size_t N>
struct lloyd_cells {
  std::array<double, N + 1> borders{};
  std::array<double, N> centroids{};
};

/// One Newton step towards borders that lie midway between the centroids of their cells; a tridiagonal system.
template <class Density, std::size_t N>
constexpr void newton_step(const Density& density, lloyd_cells<N>& cells) {
  std::array<cell_integrals, N + 1> at{};
  for (std::size_t i = 0; i <= N; ++i) at[i] = density.below(cells.borders[i]);
  std::array<double, N> mass{};
  for (std::size_t i = 0; i < N; ++i) {
    mass[i] = at[i + 1].mass - at[i].mass;
    cells.centroids[i] = (at[i + 1].moment - at[i].moment) / mass[i];
  }
  // F_i = t_i - (c_(i-1) + c_i) / 2 depends on t_(i-1), t_i, t_(i+1); elimination downwards, then back.
  std::array<double, N + 1> upper{};
  std::array<double, N + 1> right{};
  for (std::size_t i = 1; i < N; ++i) {
    const double t = cells.borders[i];
    const double c0 = cells.centroids[i - 1];
    const double c1 = cells.centroids[i];
    const double lower = i == 1 ? 0 : -0.5 * at[i - 1].density * (c0 - cells.borders[i - 1]) / mass[i - 1];
    const double above = i + 1 == N ? 0 : -0.5 * at[i + 1].density * (cells.borders[i + 1] - c1) / mass[i];
    const double middle = 1 - 0.5 * at[i].density * ((t - c0) / mass[i - 1] + (c1 - t) / mass[i]) - lower * upper[i - 1];
    upper[i] = above / middle;
    right[i] = (t - 0.5 * (c0 + c1) - lower * right[i - 1]) / middle;
  }
  for (std::size_t i = N - 1; i >= 1; --i) {
    right[i] -= upper[i] * right[i + 1];
    cells.borders[i] -= right[i];
  }
}

/// Cells at which Lloyd's iteration stands still.
///
/// what        cells of half as many, each cut at its centroid, then Newton's method
/// exactness   double; up to 8 cells borders are within 1e-8 of the fixed point, more cells within 1e-4 of their width
template <std::size_t N, class Density>
constexpr lloyd_cells<N> lloyd_max(const Density& density) {
  lloyd_cells<N> cells;
  if constexpr (N > 1) {
    const auto half = lloyd_max<N / 2>(density);
    for (std::size_t i = 0; i < N / 2; ++i) {
      cells.borders[2 * i] = half.borders[i];
      cells.borders[2 * i + 1] = half.centroids[i];
    }
  }
  cells.borders[N] = density.end();
  constexpr int steps = N > 8 ? 3 : 4;
  for (int step = 0; step < steps; ++step) newton_step(density, cells);
  return cells;
}

/// The codebook of directions of `Width` coordinates.
///
/// cost        compile time alone
/// source      Lloyd 1982, Max 1960; the density of ParisKV (arXiv 2602.07721) section 3
template <int Bits, int Width>
constexpr codebook<Bits> make_codebook() {
  codebook<Bits> book;
  const auto fill = [&](const auto& cells) {
    for (std::size_t i = 0; i < book.levels.size(); ++i) book.levels[i] = static_cast<float>(cells.centroids[i]);
    for (std::size_t i = 0; i < book.squared_thresholds.size(); ++i)
      book.squared_thresholds[i] = static_cast<float>(cells.borders[i + 1] * cells.borders[i + 1]);
  };
  if constexpr (Width == 1) {
    book.levels.fill(1);  // |x| is 1, and below all thresholds
    book.squared_thresholds.fill(2);
  } else if constexpr (Width > widest_codebook) {
    fill(lloyd_max<(1u << Bits)>(normal_density{}));
  } else {
    fill(lloyd_max<(1u << Bits)>(direction_density{Width}));
  }
  return book;
}

/// Each in an evaluation of its own: clang counts the steps of one.
template <int Bits, int Width>
inline constexpr codebook<Bits> codebook_of_width = make_codebook<Bits, Width>();

template <int Bits, std::size_t... I>
constexpr std::array<codebook<Bits>, sizeof...(I)> make_codebooks(std::index_sequence<I...>) {
  return {codebook_of_width<Bits, static_cast<int>(I) + 1>...};
}

/// The codebooks of `Bits` magnitude bits: element w - 1 is for directions of w coordinates, the last for wider ones.
template <int Bits>
inline constexpr std::array<codebook<Bits>, widest_codebook + 1> codebooks =
    make_codebooks<Bits>(std::make_index_sequence<widest_codebook + 1>());

/// The codebook for directions of `width` coordinates.
template <int Bits>
constexpr const codebook<Bits>& codebook_for(int width) {
  return codebooks<Bits>[static_cast<std::size_t>((width > widest_codebook ? widest_codebook + 1 : width) - 1)];
}

// Converged tables of the paper's code (3 bits, 8 coordinates).
static_assert([] {
  constexpr float levels[8] = {.042509f, .128044f, .215201f, .305324f, .400271f, .503022f, .619348f, .764835f};
  for (std::size_t i = 0; i < 8; ++i) {
    const float off = codebook_of_width<3, 8>.levels[i] - levels[i];
    if (off > 1e-6f || off < -1e-6f) return false;
  }
  return true;
}());

}  // namespace kvx
