#pragma once
// Chunks on the device: rows to bytes and back, coefficients to bytes and back. Includes only.

#include <kvx/codec/cuda/decode_coefficients.cuh>
#include <kvx/codec/cuda/encode_chunk.cuh>
#include <kvx/codec/cuda/encode_coefficients.cuh>
#include <kvx/codec/cuda/prediction.cuh>
#include <kvx/codec/cuda/restore_rows.cuh>
#include <kvx/transform/cuda/tiled_product.cuh>
