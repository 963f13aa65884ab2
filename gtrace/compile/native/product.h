// Products of matrices, of sizes and strides known to the compiler: out[i, j] = sum of x[i, k] * y[k, j].

#include <stdint.h>

#include <type_traits>

namespace {

#ifdef __AVX512F__
constexpr int64_t VECTOR = 64, TALL = 6, BROAD = 4;
#else
constexpr int64_t VECTOR = 32, TALL = 4, BROAD = 3;
#endif
// sums of products may be rounded once, as in every library of products
#ifdef __clang__
#define CONTRACTED
#define CONTRACT _Pragma("clang fp contract(fast)")
#else
#define CONTRACTED , optimize("fp-contract=fast")
#define CONTRACT
#endif

template <class T> struct Vector {
  typedef T type __attribute__((vector_size(VECTOR)));
  typedef T apart __attribute__((vector_size(VECTOR), aligned(sizeof(T)), may_alias));
  typedef std::conditional_t<sizeof(T) == 8, int64_t, std::conditional_t<sizeof(T) == 4, int32_t,
      std::conditional_t<sizeof(T) == 2, int16_t, int8_t>>> place;
  typedef place places __attribute__((vector_size(VECTOR)));
  static constexpr int64_t LANES = VECTOR / sizeof(T);
  static type load(const T* p) { return *reinterpret_cast<const apart*>(p); }
  static void store(T* p, type v) { *reinterpret_cast<apart*>(p) = v; }
  static type shuffle(type a, type b, places from) {
#ifdef __clang__
    type out;
    for (int64_t l = 0; l < LANES; ++l) out[l] = from[l] < LANES ? a[from[l]] : b[from[l] - LANES];
    return out;
#else
    return __builtin_shuffle(a, b, from);
#endif
  }
};

// A tile of the result, R rows of C vectors, stays in registers. MORE: it is added to what is there.
template <class T, int64_t R, int64_t C, int64_t XI, int64_t XK, int64_t YK, int64_t OI, bool MORE>
__attribute__((noinline CONTRACTED)) void tile(const T* x, const T* y, T* __restrict out, int64_t count) {
  CONTRACT
  using V = Vector<T>;
  typename V::type sums[R][C] = {};
  if constexpr (MORE)
    for (int64_t r = 0; r < R; ++r)
      for (int64_t c = 0; c < C; ++c) sums[r][c] = V::load(out + r * OI + c * V::LANES);
  for (int64_t k = 0; k < count; ++k) {
    typename V::type row[C];
    for (int64_t c = 0; c < C; ++c) row[c] = V::load(y + k * YK + c * V::LANES);
    for (int64_t r = 0; r < R; ++r) {
      const T factor = x[r * XI + k * XK];
      for (int64_t c = 0; c < C; ++c) sums[r][c] += factor * row[c];
    }
  }
  for (int64_t r = 0; r < R; ++r)
    for (int64_t c = 0; c < C; ++c) V::store(out + r * OI + c * V::LANES, sums[r][c]);
}

// C vectors of every row of the result
template <class T, int64_t I, int64_t C, int64_t XI, int64_t XK, int64_t YK, int64_t OI, bool MORE = false>
inline void strip(const T* x, const T* y, T* __restrict out, int64_t count) {
  int64_t i = 0;
  for (; i + TALL <= I; i += TALL) tile<T, TALL, C, XI, XK, YK, OI, MORE>(x + i * XI, y, out + i * OI, count);
  if constexpr (I % TALL != 0) tile<T, I % TALL, C, XI, XK, YK, OI, MORE>(x + i * XI, y, out + i * OI, count);
}

// Copies a square of LANES x LANES elements, transposed: rows of y are the columns of the copy.
template <class T, int64_t YJ, int64_t TO> inline void transpose(const T* y, T* __restrict out) {
  using V = Vector<T>;
  typename V::type rows[V::LANES];
  for (int64_t j = 0; j < V::LANES; ++j) rows[j] = V::load(y + j * YJ);
  for (int64_t half = 1; half < V::LANES; half *= 2) {
    typename V::places even, odd;
    for (int64_t l = 0; l < V::LANES; ++l) {
      even[l] = l & half ? V::LANES + l - half : l;
      odd[l] = l & half ? V::LANES + l : l + half;
    }
    for (int64_t j = 0; j < V::LANES; ++j)
      if (!(j & half)) {
        const typename V::type a = rows[j], b = rows[j + half];
        rows[j] = V::shuffle(a, b, even);
        rows[j + half] = V::shuffle(a, b, odd);
      }
  }
  for (int64_t l = 0; l < V::LANES; ++l) V::store(out + l * TO, rows[l]);
}

// C vectors of every row of the result, of at most as many columns. They are copied to lie side by side, with zeros.
template <class T, int64_t I, int64_t K, int64_t C, int64_t XI, int64_t XK, int64_t YK, int64_t YJ, int64_t OI>
__attribute__((noinline)) void packed_strip(const T* x, const T* y, T* __restrict out, int64_t columns) {
  constexpr int64_t LANES = Vector<T>::LANES, WIDTH = C * LANES, MOST = K < 256 ? K : 256;
  T packed[MOST * WIDTH], sums[I * WIDTH];
  for (int64_t k = 0; k < K; k += MOST) {
    const int64_t count = K - k < MOST ? K - k : MOST;
    int64_t j = 0;
    if constexpr (YK == 1 && K >= LANES)
      for (; j + LANES <= columns; j += LANES) {
        int64_t l = 0;
        for (; l + LANES <= count; l += LANES) transpose<T, YJ, WIDTH>(y + k + l + j * YJ, packed + l * WIDTH + j);
        for (; l < count; ++l)
          for (int64_t c = 0; c < LANES; ++c) packed[l * WIDTH + j + c] = y[k + l + (j + c) * YJ];
      }
    for (; j < WIDTH; ++j)
      for (int64_t l = 0; l < count; ++l) packed[l * WIDTH + j] = j < columns ? y[(k + l) * YK + j * YJ] : T(0);
    if (k == 0) strip<T, I, C, XI, XK, WIDTH, WIDTH>(x, packed, sums, count);
    else strip<T, I, C, XI, XK, WIDTH, WIDTH, true>(x + k * XK, packed, sums, count);
  }
  for (int64_t i = 0; i < I; ++i)
    for (int64_t j = 0; j < columns; ++j) out[i * OI + j] = sums[i * WIDTH + j];
}

template <class T, int64_t I, int64_t K, int64_t J, int64_t XI, int64_t XK, int64_t YK, int64_t YJ, int64_t OI>
inline void packed(const T* x, const T* y, T* __restrict out) {
  constexpr int64_t LANES = Vector<T>::LANES, STRIP = BROAD * LANES, LEFT = J % STRIP;
  int64_t j = 0;
  for (; j + STRIP <= J; j += STRIP) packed_strip<T, I, K, BROAD, XI, XK, YK, YJ, OI>(x, y + j * YJ, out + j, STRIP);
  if constexpr (LEFT != 0)
    packed_strip<T, I, K, (LEFT + LANES - 1) / LANES, XI, XK, YK, YJ, OI>(x, y + j * YJ, out + j, LEFT);
}

// The dot products of R rows of x with S columns of y, both contiguous
template <class T, int64_t R, int64_t S, int64_t XI, int64_t YJ, int64_t OI, int64_t OJ>
__attribute__((noinline CONTRACTED)) void dots(const T* x, const T* y, T* __restrict out, int64_t count) {
  CONTRACT
  using V = Vector<T>;
  typename V::type lanes[R][S] = {};
  int64_t k = 0;
  for (; k + V::LANES <= count; k += V::LANES)
    for (int64_t r = 0; r < R; ++r)
      for (int64_t s = 0; s < S; ++s) lanes[r][s] += V::load(x + r * XI + k) * V::load(y + s * YJ + k);
  for (int64_t r = 0; r < R; ++r)
    for (int64_t s = 0; s < S; ++s) {
      T sums[V::LANES];
      V::store(sums, lanes[r][s]);
      for (int64_t half = V::LANES / 2; half; half /= 2)
        for (int64_t l = 0; l < half; ++l) sums[l] += sums[l + half];
      for (int64_t l = k; l < count; ++l) sums[0] += x[r * XI + l] * y[s * YJ + l];
      out[r * OI + s * OJ] = sums[0];
    }
}

// The dot products of R rows of x with every column of y
template <class T, int64_t R, int64_t K, int64_t J, int64_t XI, int64_t YJ, int64_t OI, int64_t OJ>
inline void dots_of_rows(const T* x, const T* y, T* __restrict out) {
  int64_t j = 0;
  for (; j + 4 <= J; j += 4) dots<T, R, 4, XI, YJ, OI, OJ>(x, y + j * YJ, out + j * OJ, K);
  if constexpr (J % 4 != 0) dots<T, R, J % 4, XI, YJ, OI, OJ>(x, y + j * YJ, out + j * OJ, K);
}

template <class T, int64_t I, int64_t K, int64_t J, int64_t XI, int64_t XK, int64_t YK, int64_t YJ, int64_t OI,
          int64_t OJ>
inline void product(const T* x, const T* y, T* __restrict out) {
  constexpr int64_t LANES = Vector<T>::LANES, STRIP = BROAD * LANES;
  if constexpr (J == 1 && I >= LANES && XI == 1 && OI == 1) {
    product<T, 1, K, I, 0, YK, XK, 1, I, 1>(y, x, out);
  } else if constexpr (XK == 1 && YK == 1 && K >= 2 * LANES && (J == 1 || I < 4)) {
    int64_t i = 0;
    for (; i + 4 <= I; i += 4) dots_of_rows<T, 4, K, J, XI, YJ, OI, OJ>(x + i * XI, y, out + i * OI);
    if constexpr (I % 4 != 0) dots_of_rows<T, I % 4, K, J, XI, YJ, OI, OJ>(x + i * XI, y, out + i * OI);
  } else if constexpr (YJ == 1 && OJ == 1 && J >= LANES) {
    int64_t j = 0;
    for (; j + STRIP <= J; j += STRIP) strip<T, I, BROAD, XI, XK, YK, OI>(x, y + j, out + j, K);
    if constexpr (J % STRIP >= LANES) strip<T, I, J % STRIP / LANES, XI, XK, YK, OI>(x, y + j, out + j, K);
    // the last columns, with some of those before
    if constexpr (J % LANES != 0) strip<T, I, 1, XI, XK, YK, OI>(x, y + J - LANES, out + J - LANES, K);
  } else if constexpr (OJ == 1 && I >= 4 && J > 1 && I * K * J >= 4096) {
    constexpr int64_t ROWS = I < 256 ? I : 256;
    int64_t i = 0;
    for (; i + ROWS <= I; i += ROWS) packed<T, ROWS, K, J, XI, XK, YK, YJ, OI>(x + i * XI, y, out + i * OI);
    if constexpr (I % ROWS != 0) packed<T, I % ROWS, K, J, XI, XK, YK, YJ, OI>(x + i * XI, y, out + i * OI);
  } else {
    for (int64_t i = 0; i < I; ++i)
      for (int64_t j = 0; j < J; ++j) {
        T sum = 0;
        for (int64_t k = 0; k < K; ++k) sum += x[i * XI + k * XK] * y[k * YK + j * YJ];
        out[i * OI + j * OJ] = sum;
      }
  }
}

}  // namespace
