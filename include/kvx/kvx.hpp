#pragma once
// The front door of the host library.

#include <kvx/aliases.hpp>
#include <kvx/attend/host/dense.hpp>
#include <kvx/backend/host.hpp>
#include <kvx/cache.hpp>
#include <kvx/host_runner.hpp>
#include <kvx/layout/contiguous.hpp>
#include <kvx/layout/external.hpp>
#include <kvx/layout/paged.hpp>
#include <kvx/spec.hpp>
