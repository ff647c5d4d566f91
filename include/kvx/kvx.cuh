#pragma once
// The front door with CUDA: the host library, and caches on a device.

#include <kvx/cuda/device_page_csr.cuh>
#include <kvx/cuda/device_runner.cuh>
#include <kvx/kvx.hpp>
