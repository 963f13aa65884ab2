// Products of matrices, of sizes and strides known to the compiler: out[i, j] = sum of x[i, k] * y[k, j].

#include <stdint.h>

#include <type_traits>

namespace {

#ifdef __AVX512F__
constexpr int64_t VECTOR = 64, TALL = 6, BROAD = 4;
#else
constexpr int64_t VECTOR = 32, TALL = 4, BROAD = 3;
#endif
constexpr int64_t PACKED = 252;  // rows of a strip of few columns whose sums are kept at a time: a multiple of TALL
constexpr int64_t SHARING = 512;  // rows of the result, about, that share a copy of columns, if there are as many
constexpr int64_t LEAST_SHARING = 128, LEAST_UNITS = 4;  // so many, where that leaves too little for threads to share
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

// C vectors of the rows of the result from i to `end`, which is I or, like i, a multiple of TALL
template <class T, int64_t I, int64_t C, int64_t XI, int64_t XK, int64_t YK, int64_t OI, bool MORE = false>
inline void strip(const T* x, const T* y, T* __restrict out, int64_t count, int64_t i, int64_t end) {
  for (; i + TALL <= end; i += TALL) tile<T, TALL, C, XI, XK, YK, OI, MORE>(x + i * XI, y, out + i * OI, count);
  if constexpr (I % TALL != 0)
    if (i < end) tile<T, I % TALL, C, XI, XK, YK, OI, MORE>(x + i * XI, y, out + i * OI, count);
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

// C vectors of the rows of the result from i to `end`, of at most as many columns; see `strip`. Columns of y are copied
// to lie side by side, with zeros: once for all of these rows.
template <class T, int64_t I, int64_t K, int64_t C, int64_t XI, int64_t XK, int64_t YK, int64_t YJ, int64_t OI>
__attribute__((noinline)) void packed_strip(const T* x, const T* y, T* __restrict out, int64_t columns, int64_t i,
                                            int64_t end) {
  constexpr int64_t LANES = Vector<T>::LANES, WIDTH = C * LANES, MOST = K < 256 ? K : 256;
  constexpr int64_t ROWS = I < PACKED ? I : PACKED;
  T packed[MOST * WIDTH], sums[ROWS * WIDTH];
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
    const T* const rows = x + k * XK;
    if (columns == WIDTH) {
      if (k == 0) strip<T, I, C, XI, XK, WIDTH, OI>(rows, packed, out, count, i, end);
      else strip<T, I, C, XI, XK, WIDTH, OI, true>(rows, packed, out, count, i, end);
    } else {  // the last columns: their vectors are longer than what is left of a row of the result
      for (int64_t from = i; from < end; from += ROWS) {
        const int64_t to = end - from < ROWS ? end : from + ROWS;
        strip<T, I, C, XI, XK, WIDTH, WIDTH>(rows + from * XI, packed, sums, count, 0, to - from);
        for (int64_t r = from; r < to; ++r)
          for (int64_t c = 0; c < columns; ++c) {
            T& element = out[r * OI + c];
            element = k == 0 ? sums[(r - from) * WIDTH + c] : T(element + sums[(r - from) * WIDTH + c]);
          }
      }
    }
  }
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

// The dot products of R rows of x with the columns of y from j to `end`, which is J or, like j, a multiple of 4
template <class T, int64_t R, int64_t K, int64_t J, int64_t XI, int64_t YJ, int64_t OI, int64_t OJ>
inline void dots_of_rows(const T* x, const T* y, T* __restrict out, int64_t j, int64_t end) {
  for (; j + 4 <= end; j += 4) dots<T, R, 4, XI, YJ, OI, OJ>(x, y + j * YJ, out + j * OJ, K);
  if constexpr (J % 4 != 0)
    if (j < end) dots<T, R, J % 4, XI, YJ, OI, OJ>(x, y + j * YJ, out + j * OJ, K);
}

constexpr int64_t over_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A product in units, which threads may share: one unit is a tile of the result, or several small ones.
template <class T, int64_t I, int64_t K, int64_t J, int64_t XI, int64_t XK, int64_t YK, int64_t YJ, int64_t OI,
          int64_t OJ>
struct Product {
  static constexpr int64_t LANES = Vector<T>::LANES, STRIP = BROAD * LANES;
  static constexpr bool TURNED = J == 1 && I >= LANES && XI == 1 && OI == 1;
  static constexpr bool DOTS = XK == 1 && YK == 1 && K >= 2 * LANES && (J == 1 || I < 4);
  static constexpr bool STRIPS = YJ == 1 && OJ == 1 && J >= LANES;
  static constexpr bool COPIED = OJ == 1 && I >= 4 && J > 1 && I * K * J >= 4096;

  // tiles, one below the other, of a unit: those that copy columns of y share the copy
  static constexpr int64_t tiles() {
    if (STRIPS) return 1;
    const int64_t wanted = over_up(LEAST_UNITS, over_up(J, STRIP)), possible = I / LEAST_SHARING;
    const int64_t few = wanted < possible ? wanted : possible, blocks = I / SHARING > few ? I / SHARING : few;
    return over_up(over_up(I, TALL), blocks > 1 ? blocks : 1);
  }
  static constexpr int64_t TILES = tiles();
  // units in one strip, or one row of tiles
  static constexpr int64_t down = DOTS && !TURNED ? over_up(I, 4) : over_up(I, TALL * TILES);
  static constexpr int64_t units() {
    if constexpr (TURNED) return Product<T, 1, K, I, 0, YK, XK, 1, I, 1>::units();
    else if constexpr (DOTS) return I < 4 ? over_up(J, 4) : down;
    else if constexpr (STRIPS || COPIED) return down * over_up(J, STRIP);
    else return I;
  }

  // Computes the units from `first` to `last`.
  static void run(const T* x, const T* y, T* __restrict out, int64_t first, int64_t last) {
    if constexpr (TURNED) {
      Product<T, 1, K, I, 0, YK, XK, 1, I, 1>::run(y, x, out, first, last);
    } else if constexpr (DOTS && I < 4) {
      dots_of_rows<T, I, K, J, XI, YJ, OI, OJ>(x, y, out, first * 4, last * 4 < J ? last * 4 : J);
    } else if constexpr (DOTS) {
      for (int64_t i = first * 4; i < last * 4; i += 4) {
        if (i + 4 <= I) dots_of_rows<T, 4, K, J, XI, YJ, OI, OJ>(x + i * XI, y, out + i * OI, 0, J);
        else if constexpr (I % 4 != 0) dots_of_rows<T, I % 4, K, J, XI, YJ, OI, OJ>(x + i * XI, y, out + i * OI, 0, J);
      }
    } else if constexpr (STRIPS || COPIED) {
      while (first < last) {
        const int64_t j = first / down * STRIP, from = first % down;
        const int64_t to = from + last - first < down ? from + last - first : down;
        columns(x, y, out, j, from * TILES * TALL, to * TILES * TALL < I ? to * TILES * TALL : I);
        first += to - from;
      }
    } else {
      for (int64_t i = first; i < last; ++i)
        for (int64_t j = 0; j < J; ++j) {
          T sum = 0;
          for (int64_t k = 0; k < K; ++k) sum += x[i * XI + k * XK] * y[k * YK + j * YJ];
          out[i * OI + j * OJ] = sum;
        }
    }
  }

  // the strip at column j, of the rows from i to `end`
  static void columns(const T* x, const T* y, T* __restrict out, int64_t j, int64_t i, int64_t end) {
    constexpr int64_t REST = J % STRIP;
    if constexpr (STRIPS) {
      if (j + STRIP <= J) return strip<T, I, BROAD, XI, XK, YK, OI>(x, y + j, out + j, K, i, end);
      if constexpr (REST >= LANES) strip<T, I, REST / LANES, XI, XK, YK, OI>(x, y + j, out + j, K, i, end);
      // the last columns, with some of those before
      if constexpr (J % LANES != 0) strip<T, I, 1, XI, XK, YK, OI>(x, y + J - LANES, out + J - LANES, K, i, end);
    } else {
      if (j + STRIP <= J)
        return packed_strip<T, I, K, BROAD, XI, XK, YK, YJ, OI>(x, y + j * YJ, out + j, STRIP, i, end);
      if constexpr (REST != 0)
        packed_strip<T, I, K, over_up(REST, LANES), XI, XK, YK, YJ, OI>(x, y + j * YJ, out + j, REST, i, end);
    }
  }
};

template <class T, int64_t I, int64_t K, int64_t J, int64_t XI, int64_t XK, int64_t YK, int64_t YJ, int64_t OI,
          int64_t OJ>
inline void product(const T* x, const T* y, T* __restrict out) {
  using Own = Product<T, I, K, J, XI, XK, YK, YJ, OI, OJ>;
  Own::run(x, y, out, 0, Own::units());
}

}  // namespace
