#pragma once
// The reranker that reads key codes alone: integer inner products, one weight a subspace, and the page's own term.

#include <kvx/core/annotate.hpp>
#include <kvx/core/math.hpp>
#include <kvx/index/group_rule.hpp>
#include <kvx/rerank/tiers.hpp>
#include <kvx/sketch/codebook.hpp>
#include <kvx/sketch/key_code.hpp>
#include <kvx/sketch/key_sketch.hpp>
#include <kvx/sketch/whole_query.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvx {

/// Reranking by inner products with the codes of the keys.
///
/// Bits        of a code's coordinate: 2, 4 or 8; `bits` of the cache's key_sketch
/// Others      how tokens take part whose rows are not read; by default they do not
/// rule        how the heads of a group rank a token together
///
/// what        logit_h(t) = unit_h sum_b w_b <v_b, n_h,b> + scale q_h.mean(page of t), with n_h the query q~_h in whole numbers of at
///             most 127, v the signed levels of the code in whole numbers of at most 127, w the weights of the code, and unit_h what one
///             unit of the sum is worth in nats
/// exactness   the same bits everywhere: integers within four coordinates, then fused multiply-adds in a stated order
///             (code_lanes_wide). Against the true logit, keys on the sphere, D 128, one subspace of 8, of scale |q| |k|: rms .0066
///             with 4 bits (ParisKV), without bias; whole numbers lose at most .012 of the sum's own rms (tested),
///             4 bits about .075
/// source      ParisKV (arXiv 2602.07721) section 3, RSQ-IP; theirs is one query a group, floats, 4 bits, no page mean
template <int Bits = 4, tiers Others = tiers{}>
  requires(Bits == 2 || Bits == 4 || Bits == 8)
struct rsq_ip {
  static_assert(is_valid(Others), "rsq_ip: tiers::value_bits must be 0, 2 or 4");
  static constexpr int bits = Bits;
  static constexpr tiers others = Others;
  group_rule rule;
};

/// The levels of a code in whole numbers.
///
/// all, last   (128) level of each cell, at most 127, cells that do not exist 0; `last` for coordinates from last_from on: those of a
///             last subspace that is narrower and has its own codebook; last_from = D where there is none
/// unit        a level is unit times its whole number
struct whole_levels {
  std::array<std::uint8_t, 128> all{};
  std::array<std::uint8_t, 128> last{};
  int last_from = 0;
  float unit = 0;
};

/// The levels of `Bits`-bit codes under a sketch.
template <int Bits>
constexpr whole_levels whole_levels_of(const key_sketch& s, int dim) {
  constexpr std::size_t cells = std::size_t{1} << (Bits - 1);
  const auto& all = codebook_for<Bits - 1>(codebook_width(s, dim, 0)).levels;
  const auto& last = codebook_for<Bits - 1>(codebook_width(s, dim, dim - 1)).levels;
  whole_levels result;
  const bool narrower = codebook_width(s, dim, dim - 1) != codebook_width(s, dim, 0);
  result.last_from = narrower ? dim - codebook_width(s, dim, dim - 1) : dim;
  const float largest = all[cells - 1] > last[cells - 1] ? all[cells - 1] : last[cells - 1];
  result.unit = largest / 127;
  for (std::size_t i = 0; i < cells; ++i) {
    result.all[i] = static_cast<std::uint8_t>(static_cast<int>(all[i] / result.unit + 0.5f));
    result.last[i] = static_cast<std::uint8_t>(static_cast<int>(last[i] / result.unit + 0.5f));
  }
  return result;
}

}  // namespace kvx
