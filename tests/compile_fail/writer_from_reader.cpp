// refused: no viable|could not convert

#include <kvx/core/tensor_view.hpp>

kvx::tensor_view<float, 2> writer_of(kvx::tensor_view<const float, 2> view) { return view; }
