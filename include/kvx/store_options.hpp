#pragma once
// What a caller may say about saving and restoring, and what restoring comes to.

#include <kvx/core/status.hpp>
#include <kvx/layout/sequence_book.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace kvx {

/// Options of one `save`.
///
/// token_ids   of the tokens that are saved, kept in the frame: what prefixes are found by, and what rows are predicted from
/// first, tokens   a range of the sequence; tokens < 0: to its end. What begins with token 0 is restored as a sequence; other ranges
///                 continue one (restore_options::after)
/// sinks       tokens at the start of the sequence that a codec leaves as they are
/// newest      tokens at the end of the range that a codec leaves as they are; < 0: 32 of up to 4,096, 64 of up to 8,192, 128 of more
/// chunk       most tokens of a chunk, 1 to 1,024: what is read to have any one of them. Products gain from 256, entropy coding from 64
/// log2_step   of a dead zone, in place of the codec's
/// fixed_ratio 0: a chunk is as long as coding makes it. Else every chunk is a page of a fixed size, 1 / fixed_ratio of its rows rounded
///             down to 8 bytes, at the finest step from log2_step on that fits; what no step fits stays as it is. Of a dead zone alone;
///             made by the host
/// own_mean_from   coded tokens from which on a frame keeps what its text's K and V have in common beside what the calibration knows:
///             2 bytes a feature, of rows coded r times smaller the part r / tokens. Of chunks of a dead zone, of any length
/// columns     true: columns of retrieving layers are stored too. They are rebuilt from rows otherwise, which costs encoding and, where
///             rows are coded, codes keys as they come back
/// pages       external layouts: the caller's page table of the sequence
struct save_options {
  std::span<const std::int32_t> token_ids = {};
  std::int64_t first = 0;
  std::int64_t tokens = -1;
  std::int64_t sinks = 4;
  std::int64_t newest = -1;
  std::int64_t chunk = 256;
  std::optional<std::int16_t> log2_step = {};
  double fixed_ratio = 0;
  std::int64_t own_mean_from = 2048;
  bool columns = false;
  std::span<const std::int32_t> pages = {};
};

/// Options of one `restore`.
///
/// tokens      the first so many; < 0: all
/// token_ids   where given, what the frame says of its tokens must agree, for the tokens that are restored
/// after       a sequence that the frame continues, whose first tokens stand before the frame's: it is forked, and stays as it is
/// salt        of restore_prefix: that of the family
/// check_first of restore_layers: rows are read and checked before the first layer is decoded, not with their layer
/// pages       external layouts: the caller's page table of the sequence, the pages of the restored tokens included. The rows of these
///             tokens that layers see are written to; a shared page among them is the caller's to copy before
struct restore_options {
  std::int64_t tokens = -1;
  std::span<const std::int32_t> token_ids = {};
  std::optional<sequence> after = {};
  std::string_view salt = {};
  bool check_first = true;
  std::span<const std::int32_t> pages = {};
};

/// What restoring came to: a sequence of so many tokens, or what is wrong with the bytes, and nothing has changed.
struct restored {
  status state;
  sequence of;
  std::int64_t tokens = 0;
  bool ok() const { return state.ok(); }
};

}  // namespace kvx
