#pragma once
// Attention of new tokens to what they attend to anyway, the first launch of attention over semantic pages.

#include <kvx/attend/cuda/key_places.cuh>
#include <kvx/attend/cuda/page_call.cuh>
#include <kvx/attend/cuda/rows.cuh>
#include <kvx/attend/cuda/tile_memory.cuh>
#include <kvx/attend/softmax_state.hpp>
#include <kvx/backend/cuda/dynamic_shared.cuh>
#include <kvx/core/element.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/layout/cuda/batch_token.cuh>
#include <kvx/sketch/cuda/energies.cuh>
#include <kvx/transform/cuda/srht.cuh>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// What the kernel of residents is told.
template <class E, class T>
struct resident_call {
  device_page_layer<E> layer;
  tensor_view<const T, 3> q;                                                             // (N, Q, D)
  float* plain = nullptr;                                                                // (units, G, D)
  float* rotated = nullptr;                                                              // (units, G, D), or null
  float* lse = nullptr;                                                                  // (units, G)
  softmax_state* states = nullptr;                                                       // (units, G)
  float* sums = nullptr;                                                                 // (units, G, Dv)
  score_rule rule;
  tile_memory memory;
  int group = 1;
};

/// One unit: its queries as floats, as codes want them and, where they are learned from, as energies; exact attention to its residents.
template <int Threads, int Pairs, class E, class T>
__global__ void __launch_bounds__(Threads, 2) attend_residents_kernel(resident_call<E, T> call) {
  __shared__ sign_words signs;
  const device_page_layer<E>& layer = call.layer;
  const std::int64_t unit = blockIdx.x, H = layer.rows.heads, row = unit / H, head = unit % H;
  const int G = call.group, D = layer.rows.key_dim, Dv = layer.rows.value_dim;
  const batch_token token = token_of_block(layer.rows_of, row);
  if (token.query < 0) return;
  const auto query = [&](int g, int d) { return to_float(*call.q.at(row, head * G + g, d)); };
  float* const plain = call.plain + unit * G * D;                                        // (G, D)
  if (call.rotated != nullptr) {
    fill_sign_words(layer.sketch.seed, D, signs);
    __syncthreads();
    rotate_queries<Threads>(call.q, row, head * G, G, D, nullptr, signs, plain, call.rotated + unit * G * D);
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < G * D; i += Threads) plain[i] = query(i / D, i % D);
  }
  if (layer.energies.at.data != nullptr && is_learned_from(token.position()))
    write_energies<Threads>(query, G, D, layer.energies.sample(layer.batch.items[token.entry].pages, head, token.position()));
  softmax_state* const states = call.states + unit * G;                                  // (G)
  const key_places residents = resident_places(layer.zones, token.item, token.query, layer.rows.page_tokens);
  const paged_source<E> source{layer.rows, token.item.pages, head};
  attend_in_block<Threads, Pairs, E, T>(
      call.memory, dynamic_shared<std::byte>(), source, residents, [&](int g) { return call.q.at(row, head * G + g, 0); },
      call.q.strides[2], G, D, Dv, call.rule, states, call.sums + unit * G * Dv, Dv);
  __syncthreads();
  for (int g = static_cast<int>(threadIdx.x); g < G; g += Threads) call.lse[unit * G + g] = states[g].lse();
}

}  // namespace kvx
