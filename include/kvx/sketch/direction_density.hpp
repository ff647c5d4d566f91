#pragma once
// How a coordinate of a random direction is distributed: integrals of its density, for codebooks made at compile time.

#include <cstdint>

namespace kvx {

/// Square root in double; within one unit in the last place. For constant expressions: std::sqrt is none in C++20.
constexpr double constant_sqrt(double x) {
  if (!(x > 0)) return 0;
  double y = __builtin_bit_cast(double, (__builtin_bit_cast(std::uint64_t, x) >> 1) + 0x1ff7a3bea91d9b1bu);  // within 4 %
  for (int i = 0; i < 4; ++i) y = 0.5 * (y + x / y);
  return y;
}
static_assert(constant_sqrt(2) > 1.4142135623730945 && constant_sqrt(2) < 1.4142135623730956 && constant_sqrt(0) == 0);

/// Arc sine of 0 <= x <= 1 in double, within a few units in the last place.
constexpr double constant_asin(double x) {
  // asin x = 2 atan(x / (1 + sqrt(1 - x^2))); atan z = 2 atan(z / (1 + sqrt(1 + z^2))) twice brings z below .2
  double z = x / (1 + constant_sqrt((1 - x) * (1 + x)));
  z = z / (1 + constant_sqrt(1 + z * z));
  z = z / (1 + constant_sqrt(1 + z * z));
  const double square = z * z;
  double sum = 0;
  for (int k = 21; k >= 1; k -= 2) sum = 1.0 / k - square * sum;
  return 8 * z * sum;
}
static_assert(constant_asin(1) > 1.570796326794895 && constant_asin(1) < 1.570796326794898 && constant_asin(0) == 0);

/// e^x for x <= 0 in double.
constexpr double constant_exp(double x) {
  double sum = 1;
  const double y = x / 1024;
  for (int k = 12; k >= 1; --k) sum = 1 + y / k * sum;
  for (int i = 0; i < 10; ++i) sum *= sum;
  return sum;
}
static_assert(constant_exp(-1) > 0.3678794411713 && constant_exp(-1) < 0.3678794411716 && constant_exp(0) == 1);

/// Integrals of an unnormalised density from 0 to a point, and the density there.
struct cell_integrals {
  double mass = 0;     ///< of p(x)
  double moment = 0;   ///< of x p(x)
  double density = 0;  ///< p
};

/// |x| of one coordinate of a uniform direction of m >= 2 coordinates: p(x) = (1 - x^2)^((m - 3) / 2) on [0, 1].
struct direction_density {
  int m = 8;

  constexpr double end() const { return 1; }

  /// Closed forms: I_n = integral of (1 - x^2)^(n/2) = (x (1 - x^2)^(n/2) + n I_(n-2)) / (n + 1), from I_-1 = asin x or I_0 = x.
  constexpr cell_integrals below(double x) const {
    const double square = (1 - x) * (1 + x);
    const double root = constant_sqrt(square);
    if (m == 2) return {constant_asin(x), 1 - root, root > 0 ? 1 / root : 0};
    const bool even = m % 2 == 0;
    double power = even ? root : square;                               // (1 - x^2)^(n/2), n = 1 or 2
    double mass = even ? (x * root + constant_asin(x)) / 2 : x;        // I_1 or I_0
    if (!even && m > 3) mass = (x * power + 2 * mass) / 3;             // I_2
    for (int n = even ? 3 : 4; n <= m - 3; n += 2) {
      power *= square;
      mass = (x * power + n * mass) / (n + 1);
    }
    const double density = m == 3 ? 1 : power;
    const double above = m == 3 ? square : power * square;             // (1 - x^2)^((m - 1) / 2)
    return {mass, (1 - above) / (m - 1), density};
  }
};

/// |x| of a normal variable with mean square 1: p(x) = exp(-x^2 / 2), the limit of sqrt(m) times the above.
struct normal_density {
  constexpr double end() const { return 9; }  // the mass beyond is 1e-19

  constexpr cell_integrals below(double x) const {
    const double density = constant_exp(-0.5 * x * x);
    double term = x;  // the series x + x^3/3 + x^5/15 + ... times the density: all terms positive
    double sum = x;
    for (int k = 3; k <= 301 && term > sum * 1e-17; k += 2) {
      term *= x * x / k;
      sum += term;
    }
    return {sum * density, 1 - density, density};
  }
};
static_assert(direction_density{4}.below(1).mass > 0.785398 && direction_density{4}.below(1).mass < 0.785399);  // pi / 4
static_assert(normal_density{}.below(9).mass > 1.253314 && normal_density{}.below(9).mass < 1.253315);         // sqrt(pi / 2)

}  // namespace kvx
