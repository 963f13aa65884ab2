// Layer norms and attention, with their gradients. `loop.h` includes it, and has what it uses.

namespace {

// -- norms

// the sum of f(k) for COUNT numbers from `first` on, in lanes and in halves as in `over`
template <int64_t COUNT, class T, class F> inline T added(const F& f, int64_t first = 0) {
  if constexpr (COUNT > LONGEST) {
    constexpr int64_t HALF = COUNT / 2 / 16 * 16;
    return added<HALF, T>(f, first) + added<COUNT - HALF, T>(f, first + HALF);
  } else {
    constexpr int64_t LANES = 16;
    T lanes[LANES] = {};
    int64_t k = 0;
    for (; k + LANES <= COUNT; k += LANES)
      for (int64_t j = 0; j < LANES; ++j) lanes[j] += f(first + k + j);
    T total = sum(lanes, 1, LANES);
    for (; k < COUNT; ++k) total += f(first + k);
    return total;
  }
}

template <class T, int64_t COUNT>
inline void layer_norm(const T* x, const T* weight, const T* bias, T eps, T* __restrict out, T* __restrict mean,
                       T* __restrict scale) {
  const T middle = added<COUNT, T>([=](int64_t k) { return x[k]; }) / T(COUNT);
  const T squares = added<COUNT, T>([=](int64_t k) { return (x[k] - middle) * (x[k] - middle); });
  const T own = T(1) / m::sqrt(squares / T(COUNT) + eps);
  for (int64_t k = 0; k < COUNT; ++k) {
    const T y = (x[k] - middle) * own;
    out[k] = (weight ? y * weight[k] : y) + (bias ? bias[k] : T(0));
  }
  *mean = middle;
  *scale = own;
}

template <class T, int64_t COUNT>
inline void layer_norm_grad(const T* g, const T* x, T mean, T scale, const T* weight, T* __restrict out) {
  const auto scaled = [=](int64_t k) { return weight ? g[k] * weight[k] : g[k]; };
  const T sum = added<COUNT, T>(scaled) / T(COUNT);
  const T along = added<COUNT, T>([=](int64_t k) { return scaled(k) * ((x[k] - mean) * scale); }) / T(COUNT);
  for (int64_t k = 0; k < COUNT; ++k) out[k] = scale * (scaled(k) - (sum + (x[k] - mean) * scale * along));
}

// the gradients of weight and bias, of at most SUMMED columns from j on; nullptr: not wanted
template <class T, int64_t ROWS, int64_t COUNT, int64_t SUMMED>
inline void layer_norm_sums(const T* g, const T* x, const T* mean, const T* scale, int64_t j, T* __restrict weight,
                            T* __restrict bias) {
  T of_weight[SUMMED] = {}, of_bias[SUMMED] = {};
  const int64_t width = COUNT - j < SUMMED ? COUNT - j : SUMMED;
  for (int64_t i = 0; i < ROWS; ++i) {
    const T middle = mean[i], own = scale[i];
    const T* const gs = g + i * COUNT + j;
    const T* const xs = x + i * COUNT + j;
    if (width == SUMMED)
      for (int64_t c = 0; c < SUMMED; ++c) of_weight[c] += gs[c] * ((xs[c] - middle) * own), of_bias[c] += gs[c];
    else
      for (int64_t c = 0; c < width; ++c) of_weight[c] += gs[c] * ((xs[c] - middle) * own), of_bias[c] += gs[c];
  }
  for (int64_t c = 0; c < width; ++c) {
    if (weight) weight[j + c] = of_weight[c];
    if (bias) bias[j + c] = of_bias[c];
  }
}

// -- attention of one head: rows of queries, keys and values are D elements side by side, QI, KI and VI apart

// scores of all pairs, scaled
template <class T, int64_t L, int64_t S, int64_t D, int64_t QI, int64_t KI>
inline void scores(const T* q, const T* k, T scale, T* __restrict out) {
  product<T, L, D, S, QI, 1, 1, KI, S, 1>(q, k, out);
  for (int64_t i = 0; i < L * S; ++i) out[i] *= scale;
}

// keys that query i sees, the first ones
template <int64_t S, bool CAUSAL> constexpr int64_t seen(int64_t i) { return CAUSAL && i + 1 < S ? i + 1 : S; }

template <class T, int64_t L, int64_t S, int64_t D, int64_t QI, int64_t KI, int64_t VI, bool CAUSAL>
__attribute__((noinline)) void attention(const T* q, const T* k, const T* v, T scale, T* __restrict out,
                                         T* __restrict logsumexp) {
  T weights[L * S];
  scores<T, L, S, D, QI, KI>(q, k, scale, weights);
  for (int64_t i = 0; i < L; ++i) {
    T* const row = weights + i * S;
    const int64_t count = seen<S, CAUSAL>(i);
    const T found = largest(row, 1, count);
    const bool none = found == -std::numeric_limits<T>::infinity();  // then torch's kernel has no weights
    const T top = none ? T(0) : found;
    for (int64_t j = 0; j < count; ++j) row[j] = m::exp(row[j] - top);
    const T total = none ? T(1) : sum(row, 1, count), part = T(1) / total;
    for (int64_t j = 0; j < count; ++j) row[j] *= part;
    for (int64_t j = count; j < S; ++j) row[j] = T(0);
    logsumexp[i] = top + m::log(total);
  }
  product<T, L, S, D, S, 1, VI, 1, D, 1>(weights, v, out);
}

// GI, OI: of the cotangent and the result of the forward pass
template <class T, int64_t L, int64_t S, int64_t D, int64_t GI, int64_t QI, int64_t KI, int64_t VI, int64_t OI,
          bool CAUSAL>
__attribute__((noinline)) void attention_grad(const T* g, const T* q, const T* k, const T* v, const T* out,
                                              const T* logsumexp, T scale, T* __restrict to_q, T* __restrict to_k,
                                              T* __restrict to_v) {
  T weights[L * S], slopes[L * S];
  scores<T, L, S, D, QI, KI>(q, k, scale, weights);
  for (int64_t i = 0; i < L; ++i) {
    T* const row = weights + i * S;
    const int64_t count = seen<S, CAUSAL>(i);
    const T shift = logsumexp[i];
    for (int64_t j = 0; j < count; ++j) row[j] = m::exp(row[j] - shift);
    for (int64_t j = count; j < S; ++j) row[j] = T(0);
  }
  product<T, S, L, D, 1, S, GI, 1, D, 1>(weights, g, to_v);
  product<T, L, D, S, GI, 1, 1, VI, S, 1>(g, v, slopes);
  for (int64_t i = 0; i < L; ++i) {
    const T along = added<D, T>([=](int64_t d) { return g[i * GI + d] * out[i * OI + d]; });
    for (int64_t j = 0; j < S; ++j) slopes[i * S + j] = weights[i * S + j] * (slopes[i * S + j] - along) * scale;
  }
  product<T, L, S, D, S, 1, KI, 1, D, 1>(slopes, k, to_q);
  product<T, S, L, D, 1, S, QI, 1, D, 1>(slopes, q, to_k);
}

}  // namespace
