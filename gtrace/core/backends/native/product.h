// Products of matrices: out[i, j] = sum of x[i, k] * y[k, j].

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
constexpr int64_t BLOCK = 1 << 12;  // terms of a dot product that are added to one number; long ones have several
constexpr int64_t LEAST_SHARING = 128, LEAST_UNITS = 4;  // so many, where that leaves too little for threads to share
// sums of products may be rounded once, as in every library of products
#ifdef __clang__
#define ROLLED
#define UNROLLED _Pragma("unroll")
#define SEPARATE noinline
#define CONTRACTED
#define CONTRACT _Pragma("clang fp contract(fast)")
#else
#define ROLLED _Pragma("GCC unroll 1")
// under `#pragma GCC optimize` g++ unrolls no other loops before it decides which arrays are in registers
#define UNROLLED _Pragma("GCC unroll 16")
#define SEPARATE noipa  // one function, and none for sizes that are constant where it is called
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

// What follows takes sizes and strides when it runs, so that all products of a program share it: only the shapes of
// tiles, and what is left over of them, are known to the compiler.

// Tiles of the result, one below the other. Each, R rows of C vectors, stays in registers. `more`: they are added to what
// is there.
template <class T, int64_t R, int64_t C>
__attribute__((SEPARATE CONTRACTED)) void tiles(const T* x, int64_t xi, int64_t xk, const T* y, int64_t yk,
                                                T* __restrict out, int64_t oi, int64_t count, int64_t many, bool more) {
  CONTRACT
  using V = Vector<T>;
  for (; many; --many, x += R * xi, out += R * oi) {
    typename V::type sums[R][C] = {};
    if (more)
      UNROLLED for (int64_t r = 0; r < R; ++r)
        UNROLLED for (int64_t c = 0; c < C; ++c) sums[r][c] = V::load(out + r * oi + c * V::LANES);
    for (int64_t k = 0; k < count; ++k) {
      typename V::type row[C];
      UNROLLED for (int64_t c = 0; c < C; ++c) row[c] = V::load(y + k * yk + c * V::LANES);
      UNROLLED for (int64_t r = 0; r < R; ++r) {
        const T factor = x[r * xi + k * xk];
        UNROLLED for (int64_t c = 0; c < C; ++c) sums[r][c] += factor * row[c];
      }
    }
    UNROLLED for (int64_t r = 0; r < R; ++r)
      UNROLLED for (int64_t c = 0; c < C; ++c) V::store(out + r * oi + c * V::LANES, sums[r][c]);
  }
}

template <class T>
using Tiles = void (*)(const T*, int64_t, int64_t, const T*, int64_t, T* __restrict, int64_t, int64_t, int64_t, bool);

// The tiles of C vectors with REST rows, which is fewer than TALL; null without any.
template <class T, int64_t REST, int64_t C> constexpr Tiles<T> rest_of() {
  if constexpr (REST != 0) return tiles<T, REST, C>;
  else return nullptr;
}

// Some vectors of the rows of the result from i to `end`, in tiles of TALL rows and one of the rest.
template <class T>
inline void strip(Tiles<T> tall, Tiles<T> rest, const T* x, int64_t xi, int64_t xk, const T* y, int64_t yk,
                  T* __restrict out, int64_t oi, int64_t count, int64_t i, int64_t end, bool more = false) {
  const int64_t many = (end - i) / TALL, last = i + many * TALL;
  if (many) tall(x + i * xi, xi, xk, y, yk, out + i * oi, oi, count, many, more);
  if (last < end) rest(x + last * xi, xi, xk, y, yk, out + last * oi, oi, count, 1, more);
}

// Copies a square of LANES x LANES elements, transposed: rows of y, `yj` apart, are the columns of the copy.
template <class T>
__attribute__((SEPARATE)) void transpose(const T* y, int64_t yj, T* __restrict out, int64_t width) {
  using V = Vector<T>;
  typename V::type rows[V::LANES];
  typename V::places own;
  UNROLLED for (int64_t l = 0; l < V::LANES; ++l) own[l] = l;
  UNROLLED for (int64_t j = 0; j < V::LANES; ++j) rows[j] = V::load(y + j * yj);
  UNROLLED for (int64_t half = 1; half < V::LANES; half *= 2) {
    const typename V::places later = (own & typename V::place(half)) != 0;
    const typename V::places even = own + (later & typename V::place(V::LANES - half));
    const typename V::places odd = own + typename V::place(half) + (later & typename V::place(V::LANES - half));
    UNROLLED for (int64_t j = 0; j < V::LANES; ++j)
      if (!(j & half)) {
        const typename V::type a = rows[j], b = rows[j + half];
        rows[j] = V::shuffle(a, b, even);
        rows[j + half] = V::shuffle(a, b, odd);
      }
  }
  UNROLLED for (int64_t l = 0; l < V::LANES; ++l) V::store(out + l * width, rows[l]);
}

// Copies `count` rows of y, of `columns` columns, to lie side by side, `width` apart, with zeros after them. SQUARES:
// columns of y are contiguous and long.
template <class T, bool SQUARES>
__attribute__((SEPARATE)) void pack(const T* y, int64_t yk, int64_t yj, T* __restrict out, int64_t width, int64_t count,
                                    int64_t columns) {
  constexpr int64_t LANES = Vector<T>::LANES;
  int64_t j = 0;
  if constexpr (SQUARES)
    for (; j + LANES <= columns; j += LANES) {
      int64_t l = 0;
      for (; l + LANES <= count; l += LANES) transpose(y + l + j * yj, yj, out + l * width + j, width);
      for (; l < count; ++l)
        ROLLED for (int64_t c = 0; c < LANES; ++c) out[l * width + j + c] = y[l + (j + c) * yj];
    }
  for (; j < columns; ++j)
    ROLLED for (int64_t l = 0; l < count; ++l) out[l * width + j] = y[l * yk + j * yj];
  for (; j < width; ++j)
    ROLLED for (int64_t l = 0; l < count; ++l) out[l * width + j] = T(0);
}

// Copies rows of sums to the result. `more`: they are added to what is there.
template <class T>
__attribute__((SEPARATE)) void keep(const T* sums, int64_t width, T* __restrict out, int64_t oi, int64_t rows,
                                    int64_t columns, bool more) {
  for (int64_t r = 0; r < rows; ++r)
    ROLLED for (int64_t c = 0; c < columns; ++c) {
      const T sum = sums[r * width + c];
      out[r * oi + c] = more ? T(out[r * oi + c] + sum) : sum;
    }
}

template <class T> using Pack = void (*)(const T*, int64_t, int64_t, T* __restrict, int64_t, int64_t, int64_t);

// A strip of at most `width` columns, the sums of which fill vectors. Columns of y are copied to lie side by side, with
// zeros: once for all of these rows.
template <class T>
__attribute__((SEPARATE)) void packed_strip(Tiles<T> tall, Tiles<T> rest, Pack<T> copy, int64_t width, const T* x,
                                            int64_t xi, int64_t xk, const T* y, int64_t yk, int64_t yj,
                                            T* __restrict out, int64_t oi, int64_t total, int64_t columns, int64_t i,
                                            int64_t end) {
  constexpr int64_t WIDEST = BROAD * Vector<T>::LANES, MOST = 256;
  T packed[MOST * WIDEST], sums[PACKED * WIDEST];
  for (int64_t k = 0; k < total; k += MOST) {
    const int64_t count = total - k < MOST ? total - k : MOST;
    copy(y + k * yk, yk, yj, packed, width, count, columns);
    const T* const rows = x + k * xk;
    if (columns == width) {
      strip(tall, rest, rows, xi, xk, packed, width, out, oi, count, i, end, k != 0);
    } else {  // the last columns: their vectors are longer than what is left of a row of the result
      for (int64_t from = i; from < end; from += PACKED) {
        const int64_t to = end - from < PACKED ? end : from + PACKED;
        strip(tall, rest, rows + from * xi, xi, xk, packed, width, sums, width, count, 0, to - from);
        keep(sums, width, out + from * oi, oi, to - from, columns, k != 0);
      }
    }
  }
}

// The dot products of R rows of x with S columns of y, both contiguous
template <class T, int64_t R, int64_t S>
__attribute__((SEPARATE CONTRACTED)) void dots(const T* x, int64_t xi, const T* y, int64_t yj, T* __restrict out,
                                               int64_t oi, int64_t oj, int64_t count) {
  CONTRACT
  using V = Vector<T>;
  typename V::type lanes[R][S] = {}, before[R][S] = {};  // the terms since the last block began, and all before
  int64_t k = 0;
  while (true) {
    const int64_t end = count - k < BLOCK ? count : k + BLOCK;
    for (; k + V::LANES <= end; k += V::LANES)
      UNROLLED for (int64_t r = 0; r < R; ++r)
        UNROLLED for (int64_t s = 0; s < S; ++s) lanes[r][s] += V::load(x + r * xi + k) * V::load(y + s * yj + k);
    if (count - k < V::LANES) break;
    UNROLLED for (int64_t r = 0; r < R; ++r)
      UNROLLED for (int64_t s = 0; s < S; ++s) {
        before[r][s] += lanes[r][s];
        lanes[r][s] = typename V::type{};
      }
  }
  T sums[R][S][V::LANES];
  UNROLLED for (int64_t r = 0; r < R; ++r)
    UNROLLED for (int64_t s = 0; s < S; ++s) V::store(sums[r][s], before[r][s] + lanes[r][s]);
  for (int64_t r = 0; r < R; ++r)
    ROLLED for (int64_t s = 0; s < S; ++s) {
      T* const own = sums[r][s];
      for (int64_t half = V::LANES / 2; half; half /= 2)
        ROLLED for (int64_t l = 0; l < half; ++l) own[l] += own[l + half];
      for (int64_t l = k; l < count; ++l) own[0] += x[r * xi + l] * y[s * yj + l];
      out[r * oi + s * oj] = own[0];
    }
}

// The dot products of R rows of x with the columns of y from j to `end`: REST more than a multiple of 4, or none
template <class T, int64_t R, int64_t REST>
__attribute__((SEPARATE)) void dots_of_rows(const T* x, int64_t xi, const T* y, int64_t yj, T* __restrict out,
                                            int64_t oi, int64_t oj, int64_t count, int64_t j, int64_t end) {
  for (; j + 4 <= end; j += 4) dots<T, R, 4>(x, xi, y + j * yj, yj, out + j * oj, oi, oj, count);
  if constexpr (REST != 0)
    if (j < end) dots<T, R, REST>(x, xi, y + j * yj, yj, out + j * oj, oi, oj, count);
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
  static constexpr int64_t shared() {
    if (STRIPS) return 1;
    const int64_t wanted = over_up(LEAST_UNITS, over_up(J, STRIP)), possible = I / LEAST_SHARING;
    const int64_t few = wanted < possible ? wanted : possible, blocks = I / SHARING > few ? I / SHARING : few;
    return over_up(over_up(I, TALL), blocks > 1 ? blocks : 1);
  }
  static constexpr int64_t TILES = shared();
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
      dots_of_rows<T, I, J % 4>(x, XI, y, YJ, out, OI, OJ, K, first * 4, last * 4 < J ? last * 4 : J);
    } else if constexpr (DOTS) {
      for (int64_t i = first * 4; i < last * 4; i += 4) {
        if (i + 4 <= I) dots_of_rows<T, 4, J % 4>(x + i * XI, XI, y, YJ, out + i * OI, OI, OJ, K, 0, J);
        else if constexpr (I % 4 != 0)
          dots_of_rows<T, I % 4, J % 4>(x + i * XI, XI, y, YJ, out + i * OI, OI, OJ, K, 0, J);
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
          for (int64_t first = 0; first < K; first += BLOCK) {
            T part = 0;
            for (int64_t k = first; k < K && k < first + BLOCK; ++k) part += x[i * XI + k * XK] * y[k * YK + j * YJ];
            sum += part;
          }
          out[i * OI + j * OJ] = sum;
        }
    }
  }

  // the strip at column j, of the rows from i to `end`
  static void columns(const T* x, const T* y, T* __restrict out, int64_t j, int64_t i, int64_t end) {
    constexpr int64_t REST = J % STRIP;
    if (j + STRIP <= J) {
      of_vectors<BROAD>(x, y, out, j, STRIP, i, end);
    } else if constexpr (STRIPS) {
      if constexpr (REST >= LANES) of_vectors<REST / LANES>(x, y, out, j, REST / LANES * LANES, i, end);
      // the last columns, with some of those before
      if constexpr (J % LANES != 0) of_vectors<1>(x, y, out, J - LANES, LANES, i, end);
    } else if constexpr (REST != 0) {
      of_vectors<over_up(REST, LANES)>(x, y, out, j, REST, i, end);
    }
  }

  // columns that fill C vectors, or less where they are copied
  template <int64_t C>
  static void of_vectors(const T* x, const T* y, T* __restrict out, int64_t j, int64_t columns, int64_t i, int64_t end) {
    constexpr Tiles<T> rest = rest_of<T, I % TALL, C>();
    if constexpr (STRIPS) {
      strip<T>(tiles<T, TALL, C>, rest, x, XI, XK, y + j, YK, out + j, OI, K, i, end);
    } else {
      constexpr bool SQUARES = YK == 1 && K >= LANES;
      packed_strip<T>(tiles<T, TALL, C>, rest, pack<T, SQUARES>, C * LANES, x, XI, XK, y + j * YJ, YK, YJ, out + j,
                      OI, K, columns, i, end);
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
