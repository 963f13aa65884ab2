// What the C++ of every native loop includes: the polling for signals, and the scalar functions of torch's operations.

#include <stdint.h>
#include <time.h>

#include <limits>
#include <type_traits>

#include "product.h"
#include "threads.h"

// <cmath> would take most of the time of the compiler
#ifdef VECTOR_MATH
// glibc has these for vectors too, and loops over them become vector instructions
#define VECTORS __attribute__((simd("notinbranch"), const))
#else
#define VECTORS __attribute__((const))
#endif
#define DECLARE_ONE(name)                    \
  extern "C" float name##f(float) VECTORS;   \
  extern "C" double name(double) VECTORS;
#define DECLARE_TWO(name)                            \
  extern "C" float name##f(float, float) VECTORS;    \
  extern "C" double name(double, double) VECTORS;
DECLARE_ONE(acos) DECLARE_ONE(acosh) DECLARE_ONE(asin) DECLARE_ONE(asinh) DECLARE_ONE(atan) DECLARE_ONE(atanh)
DECLARE_ONE(cos) DECLARE_ONE(cosh) DECLARE_ONE(erf) DECLARE_ONE(erfc) DECLARE_ONE(exp) DECLARE_ONE(exp2)
DECLARE_ONE(expm1) DECLARE_ONE(log) DECLARE_ONE(log10) DECLARE_ONE(log1p) DECLARE_ONE(log2) DECLARE_ONE(sin)
DECLARE_ONE(sinh) DECLARE_ONE(tan) DECLARE_ONE(tanh) DECLARE_TWO(atan2) DECLARE_TWO(hypot) DECLARE_TWO(pow)

namespace {

namespace m {
#define LIBRARY_ONE(name)                              \
  inline float name(float x) { return ::name##f(x); }  \
  inline double name(double x) { return ::name(x); }
#define LIBRARY_TWO(name)                                           \
  inline float name(float x, float y) { return ::name##f(x, y); }   \
  inline double name(double x, double y) { return ::name(x, y); }
#define BUILTIN_ONE(name)                                         \
  inline float name(float x) { return __builtin_##name##f(x); }   \
  inline double name(double x) { return __builtin_##name(x); }
#define BUILTIN_TWO(name)                                                       \
  inline float name(float x, float y) { return __builtin_##name##f(x, y); }     \
  inline double name(double x, double y) { return __builtin_##name(x, y); }
LIBRARY_ONE(acos) LIBRARY_ONE(acosh) LIBRARY_ONE(asin) LIBRARY_ONE(asinh) LIBRARY_ONE(atan) LIBRARY_ONE(atanh)
LIBRARY_ONE(cos) LIBRARY_ONE(cosh) LIBRARY_ONE(erf) LIBRARY_ONE(erfc) LIBRARY_ONE(exp) LIBRARY_ONE(exp2)
LIBRARY_ONE(expm1) LIBRARY_ONE(log) LIBRARY_ONE(log10) LIBRARY_ONE(log1p) LIBRARY_ONE(log2) LIBRARY_ONE(sin)
LIBRARY_ONE(sinh) LIBRARY_ONE(tan) LIBRARY_ONE(tanh) LIBRARY_TWO(atan2) LIBRARY_TWO(hypot) LIBRARY_TWO(pow)
BUILTIN_ONE(ceil) BUILTIN_ONE(fabs) BUILTIN_ONE(floor) BUILTIN_ONE(lgamma) BUILTIN_ONE(nearbyint) BUILTIN_ONE(sqrt)
BUILTIN_ONE(trunc) BUILTIN_TWO(copysign) BUILTIN_TWO(fmod) BUILTIN_TWO(nextafter)
inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
template <class T> inline bool isinf(T x) { return fabs(x) == std::numeric_limits<T>::infinity(); }
template <class T> inline bool signbit(T x) { return copysign(T(1), x) < 0; }
}  // namespace m

template <class T> inline void exchange(T& a, T& b) {
  const T c = a;
  a = b;
  b = c;
}

// How many steps a loop of this call has, at most; see `runs.py`.
inline int64_t most_steps(void** python) { return reinterpret_cast<int64_t>(python[6]); }

inline int64_t scan_steps(int64_t length, int64_t uncut, int64_t most) {
  return length <= uncut || length <= most ? length : most;
}

// Gives the rows of steps that did not run the values of the last one that did.
template <class T> inline void repeat_last(T* rows, int64_t size, int64_t steps, int64_t length, bool reverse) {
  const T* const last = rows + (reverse ? length - steps : steps - 1) * size;
  for (int64_t k = steps; k < length; ++k) {
    T* const row = rows + (reverse ? length - 1 - k : k) * size;
    for (int64_t i = 0; i < size; ++i) row[i] = last[i];
  }
}

// Lets Python handle signals during a long loop. The functions are CPython's, absent where no Python runs the loop.
struct Signals {
  void* (*save)();
  void (*restore)(void*);
  int (*check)();
  void* thread = nullptr;  // set while another thread may hold the interpreter's lock
  int64_t due = now() + 20;

  static int64_t now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t(t.tv_sec) * 1000 + t.tv_nsec / 1000000;
  }

  explicit Signals(void** python)
      : save(reinterpret_cast<void* (*)()>(python[0])),
        restore(reinterpret_cast<void (*)(void*)>(python[1])),
        check(reinterpret_cast<int (*)()>(python[2])) {}

  // Returns whether a handler raised: then the loop must end.
  bool poll() {
    const int64_t milliseconds = now();
    if (milliseconds < due || check == nullptr) return false;
    due = milliseconds + 20;
    if (thread != nullptr) restore(thread);
    thread = nullptr;
    if (check() != 0) return true;
    thread = save();
    return false;
  }

  ~Signals() {
    if (thread != nullptr) restore(thread);
  }
};

// A product in at most so many parts
template <class Own, class T> inline void shared_product(Team& team, int64_t most, const T* x, const T* y, T* out) {
  const int64_t units = Own::units(), parts = most < units ? most : units;
  team.run(parts, [=](int64_t part) { Own::run(x, y, out, units * part / parts, units * (part + 1) / parts); });
}

constexpr int64_t DONE = 0, INTERRUPTED = 1, REFUSED = 2;

template <class T> inline T lowest() {
  return std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
}
template <class T> inline T highest() {
  return std::numeric_limits<T>::has_infinity ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
}

// -- arithmetic

template <class T> inline T absolute(T x) {
  if constexpr (std::is_floating_point_v<T>) return m::fabs(x);
  else if constexpr (std::is_unsigned_v<T>) return x;
  else return x < 0 ? T(-x) : x;
}

template <class T> inline T floor_divide(T a, T b, bool& refused) {
  if constexpr (std::is_floating_point_v<T>) {
    if (b == 0) return a / b;
    const T rest = m::fmod(a, b);
    T quotient = (a - rest) / b;
    if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
    if (quotient == 0) return m::copysign(T(0), a / b);
    T whole = m::floor(quotient);
    if (quotient - whole > T(0.5)) whole += 1;
    return whole;
  } else {
    if (b == 0) { refused = true; return 0; }
    if constexpr (std::is_signed_v<T>) {
      if (b == -1) return T(-a);
      return T(a / b - (a % b != 0 && (a < 0) != (b < 0)));
    } else return T(a / b);
  }
}

template <class T> inline T remainder(T a, T b, bool& refused) {
  if constexpr (std::is_floating_point_v<T>) {
    const T rest = m::fmod(a, b);
    return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
  } else {
    if (b == 0) { refused = true; return 0; }
    if constexpr (std::is_signed_v<T>) {
      if (b == -1) return 0;
      const T rest = T(a % b);
      return rest != 0 && (b < 0) != (rest < 0) ? T(rest + b) : rest;
    } else return T(a % b);
  }
}

template <class T> inline T fmod_(T a, T b, bool& refused) {
  if constexpr (std::is_floating_point_v<T>) return m::fmod(a, b);
  else {
    if (b == 0) { refused = true; return 0; }
    if constexpr (std::is_signed_v<T>) if (b == -1) return 0;
    return T(a % b);
  }
}

template <class T> inline T whole_power(T x, int64_t n) {
  if constexpr (std::is_signed_v<T>) {
    if (n < 0) return x == 1 ? 1 : x == T(-1) ? (n % 2 ? T(-1) : T(1)) : 0;
  }
  T out = 1;
  for (uint64_t k = uint64_t(n); k; k >>= 1) {
    if (k & 1) out = T(out * x);
    x = T(x * x);
  }
  return out;
}

template <class T> inline T power(T x, T y) {
  if constexpr (std::is_floating_point_v<T>) return m::pow(x, y);
  else return whole_power(x, int64_t(y));
}

// 0.0 is larger than -0.0, and NaN wins
template <class T> inline T maximum(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return a > b ? a : b > a ? b : a == b && a != 0 ? a : a + b;
  else return a > b ? a : b;
}
template <class T> inline T minimum(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return a < b ? a : b < a ? b : a == b && a != 0 ? a : -(-a + -b);
  else return a < b ? a : b;
}

template <class T> inline T sign(T x) {
  if constexpr (std::is_floating_point_v<T>) return x != x ? x : T((x > 0) - (x < 0));
  else return T((x > 0) - (x < 0));
}

template <class T> inline T left_shift(T a, T b) {
  using U = std::make_unsigned_t<T>;
  const bool outside = b < 0 || b >= T(8 * sizeof(T));
  return outside ? T(0) : T(U(a) << b);
}
template <class T> inline T right_shift(T a, T b) {
  constexpr T most = T(8 * sizeof(T) - std::is_signed_v<T>);
  const bool outside = b < 0 || b >= most;
  return outside ? T(a >> (most - (std::is_signed_v<T> ? 0 : 1))) * (std::is_signed_v<T> ? 1 : 0) : T(a >> b);
}

template <class T> inline T gcd(T a, T b) {
  while (b != 0) {
    const T rest = b == T(-1) ? T(0) : T(a % b);
    a = b;
    b = rest;
  }
  return absolute(a);
}

// floats of 16 bits: numbers in memory, which are rounded to the nearest, and of two to the even one
struct bfloat {
  uint16_t bits;
  bfloat() = default;
  bfloat(float x) {
    uint32_t all;
    __builtin_memcpy(&all, &x, sizeof all);
    bits = x != x ? 0x7fc0 : uint16_t((all + 0x7fff + (all >> 16 & 1)) >> 16);
  }
  operator float() const {
    const uint32_t all = uint32_t(bits) << 16;
    float x;
    __builtin_memcpy(&x, &all, sizeof x);
    return x;
  }
};
#ifdef __FLT16_MAX__
struct half {
  _Float16 value;
  half() = default;
  half(float x) : value(static_cast<_Float16>(x)) {}
  operator float() const { return static_cast<float>(value); }
};
#endif
template <class Memory> inline float rounded(float x) { return float(Memory(x)); }

// a float as an integer: the nearest one that there is, 0 for NaN
template <class To, class From> inline To saturated(From x) {
  constexpr From above = From(std::numeric_limits<To>::max() / 2 + 1) * 2;
  if (x != x) return 0;
  if (x >= above) return std::numeric_limits<To>::max();
  if (x <= From(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
  return To(x);
}

template <class To, class From> inline To cast(From x) {
  if constexpr (std::is_same_v<To, bool>) return x != From(0);
  else if constexpr (std::is_same_v<To, uint8_t> && std::is_floating_point_v<From>) return To(int64_t(x));
  else return To(x);
}

// -- functions

template <class T> inline T sigmoid(T x) { return T(1) / (T(1) + m::exp(-x)); }
template <class T> inline T silu(T x) { return x / (T(1) + m::exp(-x)); }
template <class T> inline T logaddexp(T a, T b) {
  if (m::isinf(a) && a == b) return a;
  const T top = a < b ? b : a;  // where one is NaN, so is the difference
  return top + m::log1p(m::exp(-m::fabs(a - b)));
}
template <class T> inline T relu(T x) { return x < 0 ? T(0) : x; }
template <class T> inline T gelu(T x) { return x * T(0.5) * (T(1) + m::erf(x * T(0.70710678118654752440))); }
template <class T> inline T gelu_tanh(T x) {
  const T inner = T(0.79788456080286535588) * (x + T(0.044715) * x * x * x);
  return T(0.5) * x * (T(1) + m::tanh(inner));
}
// beyond 40 the slope is 0 or 1, and its terms overflow
template <class T> inline T flattened(T x) { return x > T(40) ? T(40) : x < T(-40) ? T(-40) : x; }
template <class T> inline T gelu_slope(T x) {
  x = flattened(x);
  const T cdf = T(0.5) * (T(1) + m::erf(x * T(0.70710678118654752440)));
  return cdf + x * m::exp(x * x * T(-0.5)) * T(0.39894228040143267794);
}
template <class T> inline T gelu_tanh_slope(T x) {
  x = flattened(x);
  const T c = T(0.79788456080286535588), k = T(0.044715);
  const T t = m::tanh(c * (x + k * x * x * x));
  return T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * c * (T(1) + T(3) * k * x * x);
}
template <class T> inline T xlogy(T x, T y) { return y != y ? y : x == 0 ? T(0) : x * m::log(y); }
template <class T> inline T xlog1py(T x, T y) { return y != y ? y : x == 0 ? T(0) : x * m::log1p(y); }
// k * log(k / x) + x - k; see `gtrace/special/gamma_functions.py`.
template <class T> inline T deviance(T k, T x) {
  const T gap = x - k, near = gap / (x + k), square = near * near;
  T series = 0;
  for (int n = 17; n > 1; n -= 2) series = square * (T(1) / n + series);
  return m::fabs(near) < T(0.1) ? near * (gap - 2 * k * series) : gap - k * m::log(x / k);
}

template <class T> inline T entr(T x) {
  return x != x ? x : x > 0 ? -x * m::log(x) : x == 0 ? T(0) : -std::numeric_limits<T>::infinity();
}

// -- reductions: partial results in lanes, which vectorize without changing float arithmetic, and in halves of halves,
// so that sums of many numbers lose no more digits than those of few (numpy/numpy#22956)

constexpr int64_t LONGEST = 1 << 8;  // numbers that are combined lane by lane: 16 in a lane, as in torch

template <class A, class T, class F> inline A over(const T* x, int64_t count, int64_t stride, A start, F combine);

template <class A, class T, class F>
__attribute__((noinline)) A over_halves(const T* x, int64_t count, int64_t stride, A start, F combine) {
  const int64_t half = count / 2 / 16 * 16;
  const A first = over<A>(x, half, stride, start, combine);
  return combine(first, over<A>(x + half * stride, count - half, stride, start, combine));
}

template <class A, class T, class F> inline A over(const T* x, int64_t count, int64_t stride, A start, F combine) {
  constexpr int64_t LANES = 16;
  if (count > LONGEST) return over_halves<A>(x, count, stride, start, combine);
  A out = start;
  int64_t k = 0;
  if (count >= LANES) {
    A lanes[LANES];
    for (int64_t j = 0; j < LANES; ++j) lanes[j] = start;
    if (stride == 1)
      for (; k + LANES <= count; k += LANES)
        for (int64_t j = 0; j < LANES; ++j) lanes[j] = combine(lanes[j], A(x[k + j]));
    else
      for (; k + LANES <= count; k += LANES)
        for (int64_t j = 0; j < LANES; ++j) lanes[j] = combine(lanes[j], A(x[(k + j) * stride]));
    for (int64_t j = 0; k < count; ++j, ++k) lanes[j] = combine(lanes[j], A(x[k * stride]));
    for (int64_t half = LANES / 2; half; half /= 2)
      for (int64_t j = 0; j < half; ++j) lanes[j] = combine(lanes[j], lanes[j + half]);
    return lanes[0];
  }
  for (; k < count; ++k) out = combine(out, A(x[k * stride]));
  return out;
}

// -- sorting: NaN is larger than all numbers, and equal elements keep their order

template <class T> struct Placed {
  T key;
  int64_t place;
};

template <class T, bool DESCENDING> inline bool stands_before(T a, T b) {
  if constexpr (DESCENDING) return a > b || (a != a && b == b);
  else return a < b || (b != b && a == a);
}

template <class T, bool DESCENDING>
inline const Placed<T>* sorted(const T* x, int64_t step, int64_t count, int64_t* memory) {
  constexpr int64_t RUN = 8;
  Placed<T>* from = reinterpret_cast<Placed<T>*>(memory);
  Placed<T>* to = from + count;
  for (int64_t begin = 0; begin < count; begin += RUN)
    for (int64_t k = begin; k < count && k < begin + RUN; ++k) {
      const T key = x[k * step];
      int64_t at = k;
      for (; at > begin && stands_before<T, DESCENDING>(key, from[at - 1].key); --at) from[at] = from[at - 1];
      from[at] = {key, k};
    }
  for (int64_t half = RUN; half < count; half *= 2) {
    for (int64_t begin = 0; begin < count; begin += 2 * half) {
      const int64_t middle = begin + half < count ? begin + half : count;
      const int64_t end = middle + half < count ? middle + half : count;
      int64_t i = begin, j = middle, k = begin;
      while (i < middle && j < end) {
        const bool second = stands_before<T, DESCENDING>(from[j].key, from[i].key);
        to[k++] = from[second ? j : i];
        j += second;
        i += !second;
      }
      for (; i < middle; ++i) to[k++] = from[i];
      for (; j < end; ++j) to[k++] = from[j];
    }
    exchange(from, to);
  }
  return from;
}

// -- rows

template <class T> inline T largest(const T* x, int64_t step, int64_t count) {
  return over<T>(x, count, step, lowest<T>(), [](T a, T b) { return maximum(a, b); });
}

template <class T> inline T sum(const T* x, int64_t step, int64_t count) {
  return over<T>(x, count, step, T(0), [](T a, T b) { return T(a + b); });
}

// in lanes, as reductions are: a sum in order would keep the function from being one of vectors
template <class T> inline T sum_of_exp(const T* x, int64_t step, int64_t count, T top) {
  constexpr int64_t LANES = 16;
  if (count > LONGEST) {
    double total = 0;
    for (int64_t k = 0; k < count; k += LONGEST)
      total += sum_of_exp(x + k * step, step, count - k < LONGEST ? count - k : LONGEST, top);
    return T(total);
  }
  T lanes[LANES] = {};
  int64_t k = 0;
  if (step == 1)
    for (; k + LANES <= count; k += LANES)
      for (int64_t j = 0; j < LANES; ++j) lanes[j] += m::exp(x[k + j] - top);
  T total = sum(lanes, 1, LANES);
  for (; k < count; ++k) total += m::exp(x[k * step] - top);
  return total;
}

template <class T> inline T logsumexp(const T* x, int64_t step, int64_t count) {
  const T top = largest(x, step, count);
  return m::isinf(top) ? top : top + m::log(sum_of_exp(x, step, count, top));
}

template <class T> inline void softmax(const T* x, int64_t step, T* out, int64_t to, int64_t count) {
  const T top = largest(x, step, count);
  if (step == 1 && to == 1) {
#pragma GCC ivdep
    for (int64_t k = 0; k < count; ++k) out[k] = m::exp(x[k] - top);
    const T total = sum(out, 1, count);
#pragma GCC ivdep
    for (int64_t k = 0; k < count; ++k) out[k] /= total;
    return;
  }
  for (int64_t k = 0; k < count; ++k) out[k * to] = m::exp(x[k * step] - top);
  const T total = sum(out, to, count);
  for (int64_t k = 0; k < count; ++k) out[k * to] /= total;
}

template <class T> inline void log_softmax(const T* x, int64_t step, T* out, int64_t to, int64_t count) {
  const T top = largest(x, step, count), shift = m::log(sum_of_exp(x, step, count, top));
#pragma GCC ivdep
  for (int64_t k = 0; k < count; ++k) out[k * to] = x[k * step] - top - shift;
}

}  // namespace

#include "layers.h"
