// What every program for a CPU includes: Inductor's kernels, torch's C interface, and owners of its tensors.
#include <torch/csrc/inductor/cpp_prefix.h>

#include <torch/csrc/inductor/aoti_runtime/scalar_to_tensor.h>
#include <torch/csrc/inductor/aoti_runtime/utils.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>

// exp within 1.01 units in the last place of float32. Inductor calls a function of Sleef, which takes twice as long.
template <class V> inline V gtrace_exp(const V& x) { return x.exp(); }
#if defined(CPU_CAPABILITY_AVX512) && !defined(_MSC_VER)
inline at::vec::Vectorized<float> gtrace_exp(const at::vec::Vectorized<float>& x) {
  // beyond these the result is infinite or 0; NaN is the second operand, which both functions return then
  const __m512 near = _mm512_min_ps(_mm512_set1_ps(89.f), _mm512_max_ps(_mm512_set1_ps(-104.f), x));
  const __m512 scaled = _mm512_mul_ps(near, _mm512_set1_ps(1.44269504f));
  const __m512 power = _mm512_roundscale_ps(scaled, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // x - power * log(2), in two parts
  __m512 r = _mm512_fnmadd_ps(power, _mm512_set1_ps(0.693145752f), near);
  r = _mm512_fnmadd_ps(power, _mm512_set1_ps(1.42860677e-6f), r);
  // minimax fit of (exp(r) - 1 - r) / r^2 between -log(2) / 2 and log(2) / 2
  __m512 p = _mm512_set1_ps(0.0013814539f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.008368745f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.04166839f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.16666521f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.49999994f));
  p = _mm512_fmadd_ps(_mm512_mul_ps(r, r), p, r);
  return _mm512_scalef_ps(_mm512_add_ps(p, _mm512_set1_ps(1.f)), power);
}
#endif
