#pragma once
// A column of the queries that a sequence was asked with: at every eighth position the energy of each channel.

#include <kvx/core/annotate.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/transform/rope_pairs.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvx {

/// One position of so many is learned from, the last one: p % 8 = 7. Chunks, cuts and forks cannot matter then.
inline constexpr std::int64_t learning_stride = 8;

/// The energies of a group's queries at one position, the squares of each channel added up over its heads.
///
/// shapes      q (N, Q, D), row and group of heads in it; energies (D)
/// exactness   sums in double, ascending, rounded to bf16
template <class T>
void group_energies(const tensor_view<T, 3>& q, std::int64_t row, std::int64_t first_head, std::int64_t heads, bf16* energies) {
  for (std::int64_t d = 0; d < q.extents[2]; ++d) {
    double sum = 0;
    for (std::int64_t g = 0; g < heads; ++g) {
      const double x = static_cast<double>(to_float(*q.at(row, first_head + g, d)));
      sum += x * x;
    }
    energies[d] = round_to<bf16>(static_cast<float>(sum));
  }
}

/// The column of one layer: it lies with the pages, so that it is shared, copied, cut and forked with the rows.
///
/// shapes      a block holds the samples (P / 8, D) bf16 of its page, of smaller pages the one that they may have; NaN first: not seen
/// units       2 D bytes for eight tokens
struct energy_column {
  column_array at;
  int dim = 0;
  int page_tokens = 0;

  static constexpr std::int64_t block_bytes(std::int64_t page_tokens, std::int64_t dim) {
    return (page_tokens < learning_stride ? 1 : page_tokens / learning_stride) * dim * 2;
  }

  /// The sample of a position that is learned from.
  KVX_HD bf16* sample(const std::int32_t* pages, std::int64_t head, std::int64_t position) const {
    const std::int64_t slot = position % page_tokens / learning_stride;
    return reinterpret_cast<bf16*>(at.at(pages[position / page_tokens], head)) + slot * dim;
  }
};

KVX_HD constexpr bool is_learned_from(std::int64_t position) { return position % learning_stride == learning_stride - 1; }

/// Positions below n that are learned from.
KVX_HD constexpr std::int64_t learned_positions(std::int64_t n) { return n / learning_stride; }
KVX_HD constexpr std::int64_t learned_position(std::int64_t i) { return (i + 1) * learning_stride - 1; }
static_assert(learned_positions(7) == 0 && learned_positions(8) == 1 && learned_position(0) == 7);

/// Marks the positions [from, to) of one head as not seen: what lay there before belongs to nobody.
inline void forget_energies(const energy_column& column, const std::int32_t* pages, std::int64_t head, std::int64_t from, std::int64_t to) {
  for (std::int64_t i = learned_positions(from); i < learned_positions(to); ++i)
    *column.sample(pages, head, learned_position(i)) = round_to<bf16>(quiet_nan);
}

/// Mean energies of the positions [from, to) that were seen, of one head; channels of a rotary pair share theirs.
///
/// shapes      sums, means (D)
/// returns     how many samples there were; means are written where there was one
/// exactness   sums in double, ascending. Samples that are not finite count as not seen
inline std::int64_t mean_energies(const energy_column& column, const std::int32_t* pages, std::int64_t head, std::int64_t from,
                                  std::int64_t to, const rope_pairs& pairs, std::span<double> sums, float* means) {
  std::int64_t count = 0;
  for (std::size_t d = 0; d < sums.size(); ++d) sums[d] = 0;
  for (std::int64_t i = learned_positions(from); i < learned_positions(to); ++i) {
    const bf16* const sample = column.sample(pages, head, learned_position(i));
    bool finite = true;
    for (std::size_t d = 0; d < sums.size(); ++d) finite = finite && to_float(sample[d]) - to_float(sample[d]) == 0;
    if (!finite) continue;
    ++count;
    for (std::size_t d = 0; d < sums.size(); ++d) sums[d] += static_cast<double>(to_float(sample[d]));
  }
  const auto mean = [&](std::size_t d) { return sums[d] / static_cast<double>(count); };
  for (std::size_t d = 0; count > 0 && d < sums.size(); ++d)
    means[d] = static_cast<float>((mean(d) + mean(static_cast<std::size_t>(pairs.partner(static_cast<int>(d))))) / 2);
  return count;
}

}  // namespace kvx
