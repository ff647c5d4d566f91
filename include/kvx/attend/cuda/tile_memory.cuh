#pragma once
// What a block of attention keeps in shared memory: queries, tiles of keys and values on their way, scores.

#include <kvx/attend/cuda/operands.cuh>
#include <kvx/core/annotate.hpp>
#include <kvx/core/bits.hpp>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// Places in the dynamic shared memory of a block; counted in operands (2 bytes) unless said otherwise.
///
/// rows        query rows of the block
/// keys        keys of a tile: a multiple of 16
/// stages      tiles that are in memory at once: one is computed while the others arrive
/// pitches     from one row to the next: odd multiples of 16 bytes, so that eight rows lie in different banks
/// planes      parts of an element (operands.cuh) lie in planes one after the other
struct tile_memory {
  int rows = 16;
  int keys = 32;
  int stages = 3;
  int key_pitch = 0;    ///< D rounded up to 32, and 8
  int value_pitch = 0;  ///< Dv rounded up to 16, and 8
  int query_plane = 0;
  int key_plane = 0;
  int value_plane = 0;
  int key_stage = 0;
  int value_stage = 0;
  int keys_at = 0;
  int values_at = 0;
  int scores_at = 0;   ///< bytes; floats (rows, keys + 8)
  int factors_at = 0;  ///< bytes; floats (rows)
  int bytes = 0;

  KVX_HD constexpr int depth() const { return key_pitch - 8; }
  KVX_HD constexpr int score_pitch() const { return keys + 8; }
};

/// Bytes of shared memory that a block may have: on every architecture from sm_80 on, on sm_80, on sm_90. The last is needed for rows of
/// float with more than 1,100 components together.
inline constexpr int shared_bytes_of_blocks[] = {99 * 1024, 163 * 1024, 227 * 1024};

constexpr tile_memory tile_memory_with(int rows, int keys, int stages, bool scores, int query_parts, int row_parts, int key_dim,
                                       int value_dim) {
  tile_memory m;
  m.rows = rows;
  m.keys = keys;
  m.stages = stages;
  m.key_pitch = static_cast<int>(round_up(key_dim, 32)) + 8;
  m.value_pitch = static_cast<int>(round_up(value_dim, 16)) + 8;
  m.query_plane = rows * m.key_pitch;
  m.key_plane = keys * m.key_pitch;
  m.value_plane = keys * m.value_pitch;
  m.key_stage = row_parts * m.key_plane;
  m.value_stage = row_parts * m.value_plane;
  m.keys_at = query_parts * m.query_plane;
  m.values_at = m.keys_at + stages * m.key_stage;
  m.scores_at = 2 * (m.values_at + stages * m.value_stage);
  m.factors_at = m.scores_at + (scores ? 4 * rows * m.score_pitch() : 0);
  m.bytes = m.factors_at + 4 * rows;
  return m;
}

/// The largest tiles that fit; `keys` 0 where none does.
///
/// what        a pure function of types and dims: which tiles a result was summed in never depends on the machine
template <element E, element T>
constexpr tile_memory tile_memory_of(int rows, int key_dim, int value_dim) {
  using operand = operand_of<E>;
  constexpr int parts = query_parts<typename operand::type, T>;
  constexpr int asynchronous[4][2] = {{32, 3}, {32, 2}, {16, 2}, {16, 1}}, converted[2][2] = {{32, 1}, {16, 1}};
  for (const int limit : shared_bytes_of_blocks) {
    for (int i = 0; i < (operand::parts > 1 ? 2 : 4); ++i) {
      const int(&shape)[2] = operand::parts > 1 ? converted[i] : asynchronous[i];
      const tile_memory m = tile_memory_with(rows, shape[0], shape[1], true, parts, operand::parts, key_dim, value_dim);
      if (m.bytes <= limit) return m;
    }
  }
  return {.keys = 0};
}

/// The same for a prompt's blocks: tiles of 32 keys, and scores that stay in registers.
template <element E, element T>
constexpr tile_memory prompt_memory_of(int rows, int key_dim, int value_dim) {
  using operand = operand_of<E>;
  constexpr int parts = prompt_query_parts<E, T>;
  for (const int limit : shared_bytes_of_blocks) {
    for (int stages = operand::parts > 1 ? 1 : 3; stages > 0; --stages) {
      const tile_memory m = tile_memory_with(rows, 32, stages, false, parts, operand::parts, key_dim, value_dim);
      if (m.bytes <= limit) return m;
    }
  }
  return {.keys = 0};
}
static_assert(tile_memory_of<bf16, bf16>(16, 128, 128).keys == 32 && tile_memory_of<bf16, bf16>(16, 128, 128).stages == 3);
static_assert(tile_memory_of<float, float>(16, 576, 576).keys == 16 && tile_memory_of<bf16, float>(16, 576, 576).keys == 16);
static_assert(prompt_memory_of<bf16, bf16>(64, 128, 128).stages == 3 && prompt_memory_of<float, float>(64, 576, 256).keys == 0);

}  // namespace kvx
