#include "stored_caches.hpp"

#include "cache_lines.hpp"
#include "file_error.hpp"

#include <kvx/kvtc.hpp>
#include <kvx/store/file_store.hpp>
#include <kvx/transform/eigen_product.hpp>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace decode_loop {
namespace {

/// A folder of its own for one frame, gone with it.
class frame_folder {
 public:
  frame_folder() : path_(std::filesystem::temp_directory_path() / ("kvx_frames_" + std::to_string(::getpid()))) {}
  frame_folder(const frame_folder&) = delete;
  frame_folder& operator=(const frame_folder&) = delete;
  ~frame_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// A cache that goes on with its prompt as it comes back from a file.
template <class Spec>
class stored_cache final : public held_cache<Spec> {
 public:
  using held_cache<Spec>::held_cache;

  std::optional<storing_cost> store(std::span<const std::int32_t> ids) override {
    const frame_folder folder;
    kvx::file_store files(folder.path());
    const kvx::digest key = kvx::key_of(this->cache_.family(), ids);
    storing_cost cost;
    kvx::status state;
    cost.save_seconds = seconds_of([&] { state = this->cache_.save(this->exec_, this->sequence_, files, key, {.token_ids = ids}); });
    kvx::file_store::reader reader;
    if (state.ok()) state = files.open(key, reader);
    if (!state.ok()) throw file_error(folder.path().string() + ": " + kvx::message(state));
    cost.bytes = static_cast<std::int64_t>(reader.size());
    this->step_.reset();
    this->cache_.close(this->exec_, this->sequence_);
    kvx::restored back;
    cost.restore_seconds = seconds_of([&] { back = this->cache_.restore(this->exec_, files, key); });
    if (!back.ok()) throw file_error(folder.path().string() + ": " + kvx::message(back.state));
    this->sequence_ = back.of;
    return cost;
  }

 private:
  template <class F>
  static double seconds_of(const F& f) {
    const auto start = std::chrono::steady_clock::now();
    f();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
};

using ours = kvx::kvtc<kvx::bf16, 64>;
using faithful = kvx::kvtc_faithful_cache<kvx::bf16, 64>;
using paris = kvx::stored_by<kvx::paris_kv<kvx::bf16, 64>, kvx::calibrated<kvx::kvtc_entropy>>;
using ice = kvx::stored_by<kvx::ice_cache<kvx::bf16, 64>, kvx::calibrated<kvx::kvtc_entropy>>;

/// A line of the table. Entropy-first, `ratio` is what coded rows are to become smaller by; a faithful stream's lies in its calibration.
/// Layers of a spec that searches retrieve, as in the lines without a file.
template <class Spec>
cache_choice stored_line(std::string_view name, std::string_view what, std::string_view calibration, double ratio,
                         bool by_default = false) {
  const auto make = [=](const kvx::host& exec, const cache_request& r) -> std::unique_ptr<any_cache> {
    if (r.head_dim != 64) throw std::runtime_error("head dimension " + std::to_string(r.head_dim) + ": the decode loop stores rows of 64");
    if (r.codecs == nullptr) throw std::runtime_error(std::string(name) + " needs a calibration: --codecs");
    Spec spec;
    spec.codec.model = r.codecs->get(calibration);
    spec.codec.product = kvx::eigen_products();
    spec.codec.embeddings = r.codecs->embeddings();
    if (ratio > 0) spec.codec.log2_step = kvx::step_for_ratio(spec.codec.model->of(), ratio);
    const kvx::geometry geometry{.layers = r.layers,
                                 .kv_heads = r.kv_heads,
                                 .query_heads = r.query_heads,
                                 .max_tokens = r.max_tokens,
                                 .kinds = searches<Spec> ? retrieving(r) : layer_kinds{},
                                 .max_step_tokens = std::min(r.max_step_tokens, r.max_tokens),
                                 .rope = r.rope};
    const std::int64_t least = kvx::packs_blocks<typename Spec::index_type> ? Spec::layout_type::shape.tokens : 1;  // whole pages
    return std::make_unique<stored_cache<Spec>>(exec, spec, geometry, kvx::attend_options{.keep = std::max(r.keep, least)});
  };
  return {name, what, by_default, false, make, calibration};  // an audit is of caches without a file
}

}  // namespace

bool codec_files::has(const std::string& folder, std::string_view name) {
  return !folder.empty() && std::filesystem::exists(folder + "/" + std::string(name) + ".kvxcal");
}

std::shared_ptr<const kvx::calibrated_model> codec_files::get(std::string_view name) const {
  const auto found = read_.find(name);
  if (found != read_.end()) return found->second;
  const std::string path = folder_ + "/" + std::string(name) + ".kvxcal";
  std::shared_ptr<const kvx::calibrated_model> model;
  const kvx::status s = kvx::read_calibrated(read_file(path), model);
  if (!s.ok()) throw file_error(path + ": " + kvx::message(s));
  const model_shape& shape = weights_.shape;
  const auto dim = static_cast<std::int32_t>(shape.head_dim);
  if (model->of().shape !=
      kvx::calibration_shape{static_cast<std::int32_t>(shape.layers), static_cast<std::int32_t>(shape.kv_heads), dim, dim})
    throw file_error(path + ": calibrated for a model of another shape");
  return read_[std::string(name)] = std::move(model);
}

kvx::token_embeddings codec_files::embeddings() const {
  const auto look_up = [](void* context, std::span<const std::int32_t> ids, float* out) {
    const model& weights = *static_cast<const model*>(context);
    const std::size_t width = weights.shape.embedding;
    for (const std::int32_t id : ids) out = std::copy_n(weights.embedding.data() + static_cast<std::size_t>(id) * width, width, out);
  };
  const auto vocabulary = static_cast<std::int64_t>(weights_.embedding.size() / weights_.shape.embedding);
  return {look_up, const_cast<model*>(&weights_), static_cast<std::int64_t>(weights_.shape.embedding), vocabulary};
}

std::vector<cache_choice> stored_caches() {
  return {
      stored_line<ours>("kvtc-35x-quick", "stored 35 times smaller, and restored; calibrated on few tokens", "quick", 35, true),
      stored_line<ours>("kvtc-12x-quick", "12 times", "quick", 12),
      stored_line<ours>("kvtc-20x-quick", "20 times", "quick", 20),
      stored_line<ours>("kvtc-27x-quick", "27 times", "quick", 27),
      stored_line<ours>("kvtc-42x-quick", "42 times", "quick", 42),
      stored_line<ours>("kvtc-20x", "20 times, a whole calibration", "predicted", 20),
      stored_line<ours>("kvtc-27x", "27 times, a whole calibration", "predicted", 27),
      stored_line<ours>("kvtc-35x", "35 times, a whole calibration", "predicted", 35),
      stored_line<paris>("paris_kv-kvtc-20x-quick", "paris_kv, its prompt stored 20 times smaller and restored", "quick", 20),
      stored_line<ice>("ice_cache-kvtc-20x-quick", "ice_cache, the same", "quick", 20),
      stored_line<faithful>("kvtc_faithful-8x-quick", "as published, nominal 8 times", "quick_faithful8", 0),
      stored_line<faithful>("kvtc_faithful-16x-quick", "16 times", "quick_faithful16", 0),
      stored_line<faithful>("kvtc_faithful-32x-quick", "32 times", "quick_faithful32", 0),
  };
}

}  // namespace decode_loop
