#pragma once
// What the consumer's other translation unit offers.

#include <kvx/attend/softmax_state.hpp>

kvx::softmax_state theirs();
