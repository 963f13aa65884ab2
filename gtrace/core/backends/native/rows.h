// Rows of dense matrices: chosen by integers, added at places given by integers, and reduced. Results do not depend on
// the number of threads. It comes after product.h, whose vectors it uses.

#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>

#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

namespace {

constexpr int64_t LINE = 64;        // bytes of a cache line
constexpr int64_t AHEAD = 16;        // rows that are fetched before they are needed
constexpr int64_t SERIAL = 1 << 13;  // elements up to which one thread is faster than several

inline int64_t threads_for(int64_t elements) { return elements <= SERIAL ? 1 : omp_get_max_threads(); }

template <class T> inline void fetch(const T* row, int64_t width) {
  const char* first = reinterpret_cast<const char*>(row);
  for (int64_t b = 0; b < width * int64_t(sizeof(T)); b += LINE) __builtin_prefetch(first + b);
}

template <class T> inline void copy(const T* x, T* __restrict out, int64_t count) {
  using V = Vector<T>;
  int64_t k = 0;
  for (; k + V::LANES <= count; k += V::LANES) V::store(out + k, V::load(x + k));
  for (; k < count; ++k) out[k] = x[k];
}

// -- chosen rows

// out[i] = x[places[i]], where places below 0 count from the end; `clipped`: those outside become the nearest inside.
// Returns false if there is a place outside, and they are not clipped.
template <class T>
bool take_rows(const T* x, const int64_t* places, T* __restrict out, int64_t rows, int64_t width, int64_t count,
               bool clipped) {
  const int64_t threads = threads_for(count * width);
  bool inside = true;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static) reduction(&& : inside)
  for (int64_t i = 0; i < count; ++i) {
    int64_t from = places[i];
    if (from < 0) from += rows;
    if (clipped) from = from < 0 ? 0 : from >= rows ? rows - 1 : from;
    if (from < 0 || from >= rows) {
      inside = false;
      continue;
    }
    if (i + AHEAD < count) {
      const int64_t next = places[i + AHEAD] < 0 ? places[i + AHEAD] + rows : places[i + AHEAD];
      if (next >= 0 && next < rows) fetch(x + next * width, width);
    }
    copy(x + from * width, out + i * width, width);
  }
  return inside;
}

// -- added rows

// Adds the columns from `left` to `right` of rows of u to the rows of out from `low` to `high`. Returns whether every
// place is one of out's rows.
template <class T, bool SOME>
bool add_part(T* __restrict out, const T* u, const int64_t* places, int64_t rows, int64_t width, int64_t count,
              int64_t low, int64_t high, int64_t left, int64_t right) {
  using V = Vector<T>;
  bool inside = true;
  for (int64_t i = 0; i < count; ++i) {
    int64_t to = places[i];
    if (to < 0) to += rows;
    if (to < 0 || to >= rows) {
      inside = false;
      continue;
    }
    if (SOME && (to < low || to >= high)) continue;
    if (i + AHEAD < count) {
      int64_t next = places[i + AHEAD];
      if (next < 0) next += rows;
      if (next >= low && next < high) {
        fetch(out + next * width + left, right - left);
        fetch(u + (i + AHEAD) * width + left, right - left);
      }
    }
    T* row = out + to * width;
    const T* more = u + i * width;
    int64_t k = left;
    for (; k + V::LANES <= right; k += V::LANES) V::store(row + k, V::load(row + k) + V::load(more + k));
    for (; k < right; ++k) row[k] += more[k];
  }
  return inside;
}

// out = x, or zeros without x, and out[places[i]] += u[i], one after the other. Rows for places outside are left out,
// and it returns false if there are any. Each thread has some of the columns, and some of the rows if columns are few.
template <class T>
bool add_rows(const T* x, const T* u, const int64_t* places, T* __restrict out, int64_t rows, int64_t width,
              int64_t count) {
  const int64_t threads = threads_for(count * width), lines = (width * int64_t(sizeof(T)) + LINE - 1) / LINE;
  const int64_t across = threads < lines ? threads : lines, down = across ? threads / across : 1;
  const int64_t each = across ? (lines + across - 1) / across * (LINE / int64_t(sizeof(T))) : 0;
  bool inside = true;
#pragma omp parallel num_threads(threads) if (threads > 1) reduction(&& : inside)
  {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < rows; ++i)
      if (x) memcpy(out + i * width, x + i * width, width * sizeof(T));
      else memset(out + i * width, 0, width * sizeof(T));
#pragma omp for schedule(static)
    for (int64_t part = 0; part < across * down; ++part) {
      const int64_t left = part % across * each, right = left + each < width ? left + each : width;
      const int64_t low = rows * (part / across) / down, high = rows * (part / across + 1) / down;
      const bool all = down > 1 ? add_part<T, true>(out, u, places, rows, width, count, low, high, left, right)
                                : add_part<T, false>(out, u, places, rows, width, count, low, high, left, right);
      inside = inside && all;
    }
  }
  return inside;
}

// -- several reductions of one matrix, in one pass

enum How { SUM, SQUARES, MAX, MIN };
enum Results { ONE, COLUMNS, ROWS };  // one result for all elements, for each column, for each row

constexpr int64_t TALLEST = 8, WIDEST = 1024;  // a tile, which stays in the nearest cache for all reductions
constexpr int64_t CHUNK = 1 << 16, CHUNKS = 32;  // elements of a chunk at least, and how many chunks at most

template <class T, int HOW> struct Kind {
  static constexpr int64_t L = Vector<T>::LANES;
  // sums of tiles are added with double precision
  using Wide = std::conditional_t<HOW == SUM || HOW == SQUARES, double, T>;
  typedef Wide Many __attribute__((vector_size(L * sizeof(Wide))));
  typedef Wide Apart __attribute__((vector_size(L * sizeof(Wide)), aligned(sizeof(Wide)), may_alias));
  static constexpr T start() { return HOW == MAX ? -T(INFINITY) : HOW == MIN ? T(INFINITY) : T(0); }
  template <class A> static A combined(A a, A b) {
    // a NaN wins
    if constexpr (HOW == MAX) return (b > a) | (b != b) ? b : a;
    else if constexpr (HOW == MIN) return (b < a) | (b != b) ? b : a;
    else return a + b;
  }
  template <class A> static A value(A x) {
    if constexpr (HOW == SQUARES) return x * x;
    else return x;
  }
  static void combine(Wide* old, typename Vector<T>::type more) {
    Apart* place = reinterpret_cast<Apart*>(old);
    *place = combined(Many(*place), __builtin_convertvector(more, Many));
  }
};

// One reduction. `divisor`: of each result, the number of its elements for a mean.
template <class T, int HOW, int RESULTS> struct Reduction {
  using K = Kind<T, HOW>;
  using V = Vector<T>;
  using Wide = typename K::Wide;
  static constexpr int RESULTS_OF = RESULTS;
  static constexpr int64_t L = V::LANES, PARTS = 4;  // so many sums at a time: each waits for the one before it
  T* out;
  Wide divisor;
  std::unique_ptr<Wide[]> kept;  // of each chunk: the lanes of the only result; all columns; the rows of a block
  int64_t size;

  void begin(int64_t chunks, int64_t columns) {
    size = RESULTS == ONE ? L : RESULTS == COLUMNS ? columns : TALLEST;
    kept.reset(new Wide[chunks * size]);
    for (int64_t k = 0; k < chunks * size; ++k) kept[k] = K::start();
  }

  // what is known of a row of a tile
  struct Row {
    typename V::type parts[PARTS];
    Wide rest;
  };
  static void open(Row& row) {
    if constexpr (RESULTS != COLUMNS) {
      for (int64_t p = 0; p < PARTS; ++p) row.parts[p] = K::start() - typename V::type{};
      row.rest = K::start();
    }
  }
  static void take(Row& row, int64_t p, typename V::type x) {
    if constexpr (RESULTS != COLUMNS) row.parts[p] = K::combined(row.parts[p], K::value(x));
  }
  static void take_one(Row& row, T x) {
    if constexpr (RESULTS != COLUMNS) row.rest = K::combined(row.rest, Wide(K::value(x)));
  }
  void close(const Row& row, int64_t r, int64_t chunk) {
    if constexpr (RESULTS != COLUMNS) {
      Wide* own = kept.get() + chunk * size;
      typename V::type whole = row.parts[0];
      for (int64_t p = 1; p < PARTS; ++p) whole = K::combined(whole, row.parts[p]);
      if constexpr (RESULTS == ONE) {
        K::combine(own, whole);
        own[0] = K::combined(own[0], row.rest);
      } else {
        T lanes[L];
        V::store(lanes, whole);
        for (int64_t half = L / 2; half; half /= 2)
          for (int64_t l = 0; l < half; ++l) lanes[l] = K::combined(lanes[l], lanes[l + half]);
        own[r] = K::combined(own[r], K::combined(Wide(lanes[0]), row.rest));
      }
    }
  }

  void down(const T* x, int64_t stride, int64_t rows, int64_t count, int64_t chunk, int64_t column) {
    if constexpr (RESULTS == COLUMNS) {
      Wide* own = kept.get() + chunk * size + column;
      int64_t k = 0;
      for (; k + L <= count; k += L) {
        typename V::type part = K::value(V::load(x + k));
        for (int64_t r = 1; r < rows; ++r) part = K::combined(part, K::value(V::load(x + r * stride + k)));
        K::combine(own + k, part);
      }
      for (; k < count; ++k)
        for (int64_t r = 0; r < rows; ++r) own[k] = K::combined(own[k], Wide(K::value(x[r * stride + k])));
    }
  }

  void block(int64_t row, int64_t rows, int64_t chunk) {
    if constexpr (RESULTS == ROWS) {
      Wide* own = kept.get() + chunk * size;
      for (int64_t r = 0; r < rows; ++r) {
        out[row + r] = T(own[r] / divisor);
        own[r] = K::start();
      }
    }
  }
  void end(int64_t chunks) {
    if constexpr (RESULTS != ROWS) {
      for (int64_t chunk = 1; chunk < chunks; ++chunk)
        for (int64_t k = 0; k < size; ++k) kept[k] = K::combined(kept[k], kept[chunk * size + k]);
      const int64_t results = RESULTS == ONE ? 1 : size;
      if constexpr (RESULTS == ONE)
        for (int64_t k = 1; k < size; ++k) kept[0] = K::combined(kept[0], kept[k]);
      for (int64_t k = 0; k < results; ++k) out[k] = T(kept[k] / divisor);
    }
  }
};

template <class T, class... Reductions>
void reduce_matrix(const T* x, int64_t rows, int64_t columns, Reductions... reductions) {
  using V = Vector<T>;
  constexpr bool ALONG = ((Reductions::RESULTS_OF != COLUMNS) || ...);
  constexpr int64_t L = V::LANES, PARTS = 4;
  int64_t chunks = rows * columns / CHUNK;
  chunks = chunks < 1 ? 1 : chunks > CHUNKS ? CHUNKS : chunks;
  (reductions.begin(chunks, columns), ...);
  const int64_t threads = threads_for(rows * columns);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t last = rows * (chunk + 1) / chunks;
    for (int64_t first = rows * chunk / chunks; first < last; first += TALLEST) {
      const int64_t tall = last - first < TALLEST ? last - first : TALLEST;
      for (int64_t column = 0; column < columns; column += WIDEST) {
        const int64_t wide = columns - column < WIDEST ? columns - column : WIDEST;
        const T* tile = x + first * columns + column;
        (reductions.down(tile, columns, tall, wide, chunk, column), ...);
        if constexpr (ALONG)
          for (int64_t r = 0; r < tall; ++r) {
            const T* row = tile + r * columns;
            std::tuple<typename Reductions::Row...> known;
            std::apply([&](auto&... own) { (Reductions::open(own), ...); }, known);
            int64_t k = 0;
            for (; k + PARTS * L <= wide; k += PARTS * L)
#pragma GCC unroll 4
              for (int64_t p = 0; p < PARTS; ++p) {
                const typename V::type elements = V::load(row + k + p * L);
                std::apply([&](auto&... own) { (Reductions::take(own, p, elements), ...); }, known);
              }
            for (; k < wide; ++k) std::apply([&](auto&... own) { (Reductions::take_one(own, row[k]), ...); }, known);
            std::apply([&](auto&... own) { (reductions.close(own, r, chunk), ...); }, known);
          }
      }
      (reductions.block(first, tall, chunk), ...);
    }
  }
  (reductions.end(chunks), ...);
}

}  // namespace
