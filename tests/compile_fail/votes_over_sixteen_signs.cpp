// refused: votes rank 2\^subspace buckets, so subspace must be 4 or 8

#include <kvx/index/sign_buckets.hpp>

using wide_votes = kvx::sign_buckets<kvx::key_sketch{.subspace = 16}, kvx::voting>;
static_assert(wide_votes::sketch.subspace == 16);
