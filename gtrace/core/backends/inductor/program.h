// What every program for a CPU includes: Inductor's kernels, torch's C interface, and owners of its tensors.
#include <torch/csrc/inductor/cpp_prefix.h>

#include <torch/csrc/inductor/aoti_runtime/scalar_to_tensor.h>
#include <torch/csrc/inductor/aoti_runtime/utils.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

// Makes a tensor. The system clears memory that is new to the process when it is first written, a page at a time: of 4 KiB,
// that takes several times as long as the writing. So pages of 2 MiB are asked for where the tensor fills them.
inline AOTITorchError gtrace_empty_strided(
    int64_t rank, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t device, int32_t index,
    AtenTensorHandle* out) {
  const AOTITorchError failed = aoti_torch_empty_strided(rank, sizes, strides, dtype, device, index, out);
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  void* data;
  int64_t size;
  if (!failed && !aoti_torch_get_data_ptr(*out, &data) && !aoti_torch_get_storage_size(*out, &size)) {
    constexpr uintptr_t PAGE = 1 << 21;
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + PAGE - 1) & ~(PAGE - 1);
    const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + size) & ~(PAGE - 1);
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // it may refuse
  }
#endif
  return failed;
}

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
