#pragma once
// What the tables of methods share.

#include "method.hpp"

#include <any_cache.hpp>

#include <kvx/kvx.hpp>

#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <string_view>

namespace quality {

template <class Spec>
std::unique_ptr<decode_loop::any_cache> hold(const kvx::host& exec, const kvx::geometry& geometry) {
  return std::make_unique<decode_loop::held_cache<Spec>>(exec, Spec{}, geometry, kvx::attend_options{});
}

/// KL, agreement, perplexity and rows attended to.
void print_divergence(std::ostream& out, const method& self, std::string_view text, const scores& got);

std::span<const method> page_methods();                                 // page_methods.cpp: IceCache, Quest

}  // namespace quality
