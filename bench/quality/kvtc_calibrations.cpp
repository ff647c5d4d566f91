#include "kvtc_calibrations.hpp"

#include "kvtc_settings.hpp"

#include <calibrate_model.hpp>
#include <file_error.hpp>
#include <gguf.hpp>

#include <kvx/codec/calibration_file.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <utility>

namespace quality {
namespace {

void keep(const std::string& path, const kvx::calibration& c) {
  const auto bytes = kvx::write_calibration(c);
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) throw decode_loop::file_error(path + ": cannot be written");
}

void print_report(const std::string& name, const std::string& report) {
  std::cout << "# " << name << "\n# ";
  for (std::size_t i = 0; i + 1 < report.size(); ++i) std::cout << report[i] << (report[i] == '\n' ? "# " : "");
  std::cout << std::endl;
}

/// The requests of these names: plans of one fit together, the names in the order of what comes out.
std::vector<decode_loop::calibration_request> requests_of(const decode_loop::model_shape& shape, std::vector<std::string>& names) {
  const auto asked = [&](std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  std::vector<decode_loop::calibration_request> requests;
  std::vector<std::string> order;
  std::size_t planned = kvtc_calibrations.size();                       // the request whose fit plans share
  for (const kvtc_calibration& of : kvtc_calibrations) {
    if (!asked(of.name)) continue;
    order.emplace_back(of.name);
    if (of.plan_ratio > 0 && planned < requests.size()) {
      requests[planned].more_plans.push_back(of.plan_ratio);
      continue;
    }
    decode_loop::calibration_request& r = requests.emplace_back();
    r.weighted = of.weighted;
    r.predictor = of.predicted;
    if (of.plan_ratio > 0) {
      planned = requests.size() - 1;
      r.options.spans = kvx::whole_model(static_cast<int>(shape.layers), static_cast<int>(shape.kv_heads));
      r.options.plan_ratio = of.plan_ratio;
      r.options.finest_ratio = 0;
      r.options.rank = static_cast<std::int64_t>(shape.layers * shape.kv_heads * shape.head_dim) / 3;
    }
  }
  names = order;
  return requests;
}

}  // namespace

std::vector<std::unique_ptr<kept_calibration>> kvtc_calibrations_of(decode_loop::forward_pass& pass, const kvx::host& exec,
                                                                    const std::string& folder,
                                                                    std::span<const std::vector<decode_loop::token_id>> texts,
                                                                    std::size_t tokens, std::span<const std::string> names) {
  const auto path_of = [&](const std::string& name) { return folder + "/" + name + ".kvxcal"; };
  std::vector<std::unique_ptr<kept_calibration>> found;
  std::vector<std::string> missing;
  for (const std::string& name : names) {
    kvx::calibration c;
    if (std::filesystem::exists(path_of(name)) && kvx::read_calibration(decode_loop::read_file(path_of(name)), c).ok()) {
      found.push_back(std::make_unique<kept_calibration>(name, std::move(c)));
    } else {
      missing.push_back(name);
    }
  }
  if (missing.empty()) return found;
  if (texts.empty())
    throw std::runtime_error(folder + " lacks " + missing.front() + ".kvxcal, and no text cal_... is given to make it from");
  std::filesystem::create_directories(folder);
  const auto requests = requests_of(pass.weights().shape, missing);
  const auto passages = decode_loop::draw_passages(texts, tokens, 504),
             attended = decode_loop::draw_passages(texts, 4096 * texts.size(), 4096);
  std::vector<kvx::calibration_report> reports;
  auto made = decode_loop::calibrate_model(pass, exec, {passages, attended}, requests, reports, [](std::string_view what, double done) {
    std::fprintf(stderr, "%.*s %.0f %%\n", static_cast<int>(what.size()), what.data(), 100 * done);
  });
  for (std::size_t i = 0; i < missing.size(); ++i) {
    keep(path_of(missing[i]), made[i]);
    print_report(missing[i], kvx::report_text(reports[i], made[i]));
    found.push_back(std::make_unique<kept_calibration>(missing[i], std::move(made[i])));
  }
  return found;
}

}  // namespace quality
