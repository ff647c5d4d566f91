#pragma once
// How far one decode's predictions are from another's: KL, agreement, perplexity, over the same teacher-forced tokens.

#include "tokenizer.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace decode_loop {

/// log(softmax(logits)), in double from fp32 logits.
std::vector<double> log_probabilities(std::span<const float> logits);

/// Collects one number a token and reports over all of them.
///
/// what        KL = sum_w p(w) (log p(w) - log q(w)), p the reference's distribution, q the method's, in nats;
///             top-1: the share of tokens where both most likely tokens are equal; perplexity: exp of the mean of -log q(next token)
class divergence {
 public:
  void add(std::span<const float> reference, std::span<const float> logits, token_id next);

  std::size_t tokens() const { return kl_.size(); }
  std::span<const double> kl() const { return kl_; }                    // (tokens)
  double kl_mean() const;
  double kl_median() const;
  double top1() const;
  double perplexity() const;

 private:
  std::vector<double> kl_;
  std::size_t agreed_ = 0;
  double surprise_ = 0;                                                 // sum of -log q(next)
};

}  // namespace decode_loop
