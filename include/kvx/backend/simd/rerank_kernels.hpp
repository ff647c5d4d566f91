// The kernels of rerank_table but for those that read codes, once per instruction set: included by dispatch.hpp behind kernels.hpp, under
// the same rules.

inline void logits(float unit, const float* sums, const float* terms, int n, float* out) {
  constexpr int step = double_lanes::width;
  const double_lanes::d u = double_lanes::set(static_cast<double>(unit));
  int t = 0;
  for (; t + step <= n; t += step)
    double_lanes::narrow(double_lanes::multiply_add(u, double_lanes::one_vector(sums + t), double_lanes::one_vector(terms + t)), out + t);
  for (; t < n; ++t) out[t] = static_cast<float>(static_cast<double>(unit) * static_cast<double>(sums[t]) + static_cast<double>(terms[t]));
}

inline float largest(const float* x, std::int64_t n) {
  lanes::f most = lanes::set(-__builtin_inff());
  std::int64_t t = 0;
  for (; t + lanes::width <= n; t += lanes::width) most = lanes::max(lanes::load(x + t), most);  // NaN on the left gives `most`
  float result = lanes::largest(most);
  for (; t < n; ++t) result = x[t] > result ? x[t] : result;
  return result;
}

/// quick_exp of every lane.
[[gnu::always_inline]] inline lanes::f quick_exp_of(lanes::f x) {
  using c = quick_exp_numbers;
  const lanes::f z = lanes::max(x, lanes::set(c::lowest));                                          // `lowest` for NaN
  const lanes::f n = lanes::round(encode_lanes::rounded(lanes::mul(z, lanes::set(c::log2_e))));
  const lanes::f high = lanes::sub(z, lanes::mul(n, lanes::set(c::ln2_high)));                      // of a product that is exact
  const lanes::f r = lanes::sub(high, encode_lanes::rounded(lanes::mul(n, lanes::set(c::ln2_low))));
  lanes::f p = lanes::set(c::series[0]);
#pragma GCC unroll 8
  for (int i = 1; i < 7; ++i) p = lanes::add(encode_lanes::rounded(lanes::mul(p, r)), lanes::set(c::series[i]));
  const lanes::f power = lanes::select(lanes::less(x, lanes::set(c::lowest)), lanes::set(0), lanes::scale(p, n));
  return lanes::select(lanes::less(x, lanes::set(1)), power, x);                                    // NaN stays
}

inline std::int64_t exponentials(const float* x, std::int64_t n, float max, float* e) {
  const lanes::f against = lanes::set(max < -3.402823466e+38f ? 0 : max);
  typename double_lanes::count sum = double_lanes::none();
  const auto count = [&](const float* p) {
#pragma GCC unroll 4
    for (int j = 0; j < lanes::width; j += double_lanes::width) sum = double_lanes::add_fixed_point(double_lanes::one_vector(p + j), sum);
  };
  std::int64_t t = 0;
  for (; t + lanes::width <= n; t += lanes::width) {
    lanes::store(e + t, quick_exp_of(lanes::sub(lanes::load(x + t), against)));
    count(e + t);
  }
  if (t < n) {
    float rest[lanes::width];
    for (int j = 0; j < lanes::width; ++j) rest[j] = t + j < n ? x[t + j] : -__builtin_inff();
    lanes::store(rest, quick_exp_of(lanes::sub(lanes::load(rest), against)));
    count(rest);
    for (int j = 0; t + j < n; ++j) e[t + j] = rest[j];
  }
  return double_lanes::whole(sum);
}

inline void mix(const float* e, std::int64_t pitch, int count, const float* factors, std::int64_t n, float* scores) {
  std::int64_t t = 0;
  for (; t + lanes::width <= n; t += lanes::width) {
    lanes::f sum = lanes::set(0);
    for (int g = 0; g < count; ++g)
      sum = lanes::add(sum, encode_lanes::rounded(lanes::mul(lanes::load(e + g * pitch + t), lanes::set(factors[g]))));
    lanes::store(scores + t, sum);
  }
  for (; t < n; ++t) {
    float sum = 0;
    for (int g = 0; g < count; ++g) sum += rounded_product(e[g * pitch + t], factors[g]);
    scores[t] = sum;
  }
}

inline std::int64_t count_at_least(const float* x, std::int64_t n, float level) {
  std::int64_t count = 0, t = 0;
  for (; t + lanes::width <= n; t += lanes::width) count += __builtin_popcount(float_bits::at_least(x + t, lanes::set(level)));
  for (; t < n; ++t) count += x[t] >= level ? 1 : 0;
  return count;
}

inline std::int64_t take_at_least(const float* x, std::int64_t n, float level, std::int32_t first, std::int32_t* out) {
  std::int32_t* end = out;
  std::int64_t t = 0;
  for (; t + lanes::width <= n; t += lanes::width) {
    const std::uint32_t bits = float_bits::at_least(x + t, lanes::set(level));
    if (bits != 0) end = float_bits::write(bits, first + static_cast<std::int32_t>(t), end);
  }
  for (; t < n; ++t) {
    if (x[t] >= level) *end++ = first + static_cast<std::int32_t>(t);
  }
  return end - out;
}

template <>
inline constexpr rerank_table functions<rerank_table> = {lanes::set_name, logits,       largest, exponentials, mix,
                                                         count_at_least,  take_at_least};
