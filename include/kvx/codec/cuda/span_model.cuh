#pragma once
// What calibration knows of K or V of a span, in device memory.

#include <kvx/backend/cuda/copy_in.cuh>
#include <kvx/backend/cuda/memory.cuh>
#include <kvx/backend/cuda/packed_upload.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/codec/chain.hpp>
#include <kvx/codec/packed_places.hpp>
#include <kvx/codec/scale_tables.hpp>
#include <kvx/core/bits.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace kvx {

/// Alphabets and levels of a rounding; see scale_tables.
struct device_scale_tables {
  const symbol_lookup* lookups = nullptr;
  const std::uint16_t* levels = nullptr;
  int rounding = 0;
};

/// span_model whose arrays lie in device memory; trivially copyable.
///
/// basis_pitch halves from one component to the next, a multiple of 8; of the outputs too
/// outputs     (predictor_rank, features) of what ids of tokens foretell; predictor_rank 0: nothing
/// run_of      (plan_components) which run a component belongs to
struct device_span_model {
  pca_basis basis;
  std::int64_t basis_pitch = 0;
  const component_scale* scales = nullptr;
  device_scale_tables tables;
  const packed_run* runs = nullptr;
  const std::int32_t* run_of = nullptr;
  std::int32_t run_count = 0;
  std::int32_t stored_runs = 0;
  std::int64_t plan_components = 0;
  std::int64_t plan_bits = 0;
  symbol_model levels;
  std::int64_t predictor_rank = 0;
  const half* outputs = nullptr;

  KVX_HD constexpr packed_places places(packing order, std::int64_t tokens) const {
    return {order, tokens, runs, run_count, stored_runs, plan_bits};
  }
};

/// scale_tables in device memory, for all spans of a calibration. Moves.
///
/// cost        170 KB; waits for its copies: not for a stream that is captured
class scale_tables_on_device {
 public:
  scale_tables_on_device(const device& exec, const scale_tables& tables, call_site where = call_site::here())
      : rounding_(tables.rounding()) {
    memory_ = allocate(exec, lookup_bytes + level_bytes);
    copy_in_and_wait(exec, memory_.data(), tables.lookups(), lookup_bytes, where);
    copy_in_and_wait(exec, memory_.data() + lookup_bytes, tables.level(0), level_bytes, where);
  }
  device_scale_tables view() const {
    return {reinterpret_cast<const symbol_lookup*>(memory_.data()), reinterpret_cast<const std::uint16_t*>(memory_.data() + lookup_bytes),
            rounding_};
  }

 private:
  static constexpr std::int64_t count = std::int64_t{scale_count} * shape_count;
  static constexpr std::int64_t lookup_bytes = count * static_cast<std::int64_t>(sizeof(symbol_lookup));
  static constexpr std::int64_t level_bytes = count * scale_tables::levels * static_cast<std::int64_t>(sizeof(std::uint16_t));

  int rounding_;
  device_block memory_;
};

/// A span_model in device memory. Moves.
///
/// shapes      model.levels, where the model has such, an alphabet a component (level_alphabets); of model.prediction rank and outputs
/// cost        the bytes of the basis and 20 a feature or component; waits for its copy: not for a stream that is captured
/// errors      usage_error: a basis without features or mean
class span_on_device {
 public:
  span_on_device(const device& exec, const span_model& model, const device_scale_tables& tables, call_site where = call_site::here()) {
    require(model.basis.features >= 1 && model.basis.mean != nullptr && (model.basis.rank == 0 || model.basis.basis != nullptr),
            "span_on_device: a basis has features, a mean and components", where);
    std::vector<packed_run> runs;
    std::vector<std::int32_t> run_of;
    if (model.plan != nullptr) {
      runs = packed_runs(*model.plan);
      for (std::size_t r = 0; r < runs.size(); ++r)
        run_of.insert(run_of.end(), static_cast<std::size_t>(runs[r].size), static_cast<std::int32_t>(r));
    }
    const std::int64_t features = model.basis.features, rank = model.basis.rank;
    view_.basis = {features, rank, nullptr, nullptr, nullptr};
    view_.basis_pitch = round_up(features, 8);
    view_.tables = tables;
    if (model.plan != nullptr) {
      view_.run_count = static_cast<std::int32_t>(runs.size());
      view_.stored_runs = static_cast<std::int32_t>(model.plan->stored_runs());
      view_.plan_components = model.plan->components();
      view_.plan_bits = model.plan->bits_per_token();
    }
    view_.levels.components = model.levels.components;
    view_.predictor_rank = model.prediction.rank;
    const std::vector<half> basis = padded(model.basis.basis, rank, features, view_.basis_pitch);
    const std::vector<half> outputs = padded(model.prediction.outputs, view_.predictor_rank, features, view_.basis_pitch);
    packed_upload all;
    const auto mean = all.add(model.basis.mean, features), weights = all.add(model.basis.weights, features);
    const auto packed_basis = all.add(basis), packed_outputs = all.add(outputs);
    const auto scales = all.add(model.scales, rank);
    const auto packed = all.add(runs);
    const auto packed_run_of = all.add(run_of);
    const auto tables_of_levels = all.add(model.levels.tables, model.levels.components);
    const auto table_of = all.add(model.levels.table_of, model.levels.components);
    const auto itself = all.room_for<device_span_model>(1);
    memory_ = all.place(exec);
    view_.basis.mean = all.at(mean);
    view_.basis.weights = all.at(weights);
    view_.basis.basis = all.at(packed_basis);
    view_.outputs = all.at(packed_outputs);
    view_.scales = all.at(scales);
    view_.runs = all.at(packed);
    view_.run_of = all.at(packed_run_of);
    view_.levels.tables = all.at(tables_of_levels);
    view_.levels.table_of = all.at(table_of);
    there_ = all.at(itself);
    all.put(itself, &view_);
    all.bring(exec, where);
  }

  /// The view, for the host to plan with, and the same in device memory, for kernels.
  const device_span_model& view() const { return view_; }
  const device_span_model* there() const { return there_; }

 private:
  /// Rows of halves from `pitch` to `pitch`.
  static std::vector<half> padded(const half* from, std::int64_t rows, std::int64_t width, std::int64_t pitch) {
    std::vector<half> to(static_cast<std::size_t>(rows * pitch));
    for (std::int64_t r = 0; r < rows; ++r)
      std::memcpy(to.data() + r * pitch, from + r * width, static_cast<std::size_t>(width) * sizeof(half));
    return to;
  }

  device_span_model view_;
  const device_span_model* there_ = nullptr;
  device_block memory_;
};

}  // namespace kvx
