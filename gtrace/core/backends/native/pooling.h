// The gradient of maxima over windows that do not overlap, of images with the channels last.

#include <omp.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>

namespace {

// x and out are [count, height, width, channels], g is [count, height / A, width / B, channels], rounded down. An element
// of out is that of g if x is the first maximum of its window there, or its last NaN, as in torch; else it is 0.
template <class T, int64_t A, int64_t B>
void max_pool_gradient(const T* __restrict x, const T* __restrict g, T* __restrict out, int64_t count, int64_t height,
                       int64_t width, int64_t channels) {
  typedef std::conditional_t<sizeof(T) == 8, int64_t, int32_t> place;
  const int64_t rows = height / A, columns = width / B, line = width * channels;
#pragma omp parallel for schedule(static) if (count * height * line > (1 << 13))
  for (int64_t i = 0; i < count * rows; ++i) {
    const int64_t first = (i / rows * height + i % rows * A) * line;
    for (int64_t j = 0; j < columns; ++j) {
      const T* from = x + first + j * B * channels;
      const T* given = g + (i * columns + j) * channels;
      T* to = out + first + j * B * channels;
#pragma GCC ivdep
      for (int64_t c = 0; c < channels; ++c) {
        T best = from[c];
        place where = 0;
#pragma GCC unroll 16
        for (place k = 1; k < A * B; ++k) {
          const T value = from[k / B * line + k % B * channels + c];
          const bool taken = (value > best) | (value != value);
          best = taken ? value : best;
          where = taken ? k : where;
        }
        const T own = given[c];
#pragma GCC unroll 16
        for (place k = 0; k < A * B; ++k) to[k / B * line + k % B * channels + c] = where == k ? own : T(0);
      }
    }
    for (int64_t a = 0; a < A; ++a)
      memset(out + first + a * line + columns * B * channels, 0, (width - columns * B) * channels * sizeof(T));
    if (i % rows == rows - 1) memset(out + first + A * line, 0, (height - rows * A) * line * sizeof(T));
  }
}

}
