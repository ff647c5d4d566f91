#pragma once
// What a method said of every scored token, beside the dense reference, and the numbers that are printed of it.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

namespace quality {

/// One number a scored token, all methods over the same tokens.
struct scores {
  std::vector<double> kl;                                               // (tokens) KL(dense || method), nats
  std::vector<double> agrees;                                           // (tokens) 1 where both most likely tokens are equal, else 0
  std::vector<double> surprise;                                         // (tokens) -log of the probability of the next token, nats
  std::vector<double> attended;                                         // (tokens) rows that a layer behind the dense ones attended to
};

/// KL(p || q) = sum over w of p(w) (log p(w) - log q(w)), in nats, from log-probabilities.
///
/// exactness   double, summed in the order of w; 0 for p against itself. p(w) = 0 adds nothing; q(w) = 0 < p(w) gives infinity
inline double kl(std::span<const double> log_p, std::span<const double> log_q) {
  double sum = 0;
  for (std::size_t w = 0; w < log_p.size(); ++w) {
    const double p = std::exp(log_p[w]);
    if (p > 0) sum += p * (log_p[w] - log_q[w]);
  }
  return sum;
}

struct summary {
  double mean = 0;
  double error = 0;                                                     // standard error of the mean
  double median = 0;
};

/// Mean, standard error and median of n >= 1 numbers.
///
/// what        error = sqrt(sum (x - mean)^2 / (n - 1) / n), 0 for one number: as if the tokens were independent
inline summary summarise(std::span<const double> x) {
  const auto n = static_cast<double>(x.size());
  summary s;
  s.mean = std::accumulate(x.begin(), x.end(), 0.0) / n;
  double squares = 0;
  for (const double value : x) squares += (value - s.mean) * (value - s.mean);
  if (x.size() > 1) s.error = std::sqrt(squares / (n - 1) / n);

  std::vector<double> sorted(x.begin(), x.end());
  std::sort(sorted.begin(), sorted.end());
  const std::size_t half = sorted.size() / 2;
  s.median = sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  return s;
}

/// exp of the mean, with the error that the mean's error makes of it: perplexity from surprise.
inline summary exponential(summary s) {
  const double value = std::exp(s.mean);
  return {value, value * s.error, std::exp(s.median)};
}

/// Mean of x over mean of y, the same tokens, with the error to first order; its median is that of nothing.
inline summary quotient_of(std::span<const double> x, std::span<const double> y) {
  const summary above = summarise(x), below = summarise(y);
  const double value = above.mean / below.mean;
  std::vector<double> residual(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) residual[i] = (x[i] - value * y[i]) / below.mean;
  return {value, summarise(residual).error, value};
}

}  // namespace quality
