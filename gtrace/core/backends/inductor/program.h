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
#define aoti_torch_empty_strided gtrace_empty_strided
