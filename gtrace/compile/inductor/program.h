// What every program for a CPU includes: Inductor's kernels, torch's C interface, and owners of its tensors.
#include <torch/csrc/inductor/cpp_prefix.h>

#include <torch/csrc/inductor/aoti_runtime/scalar_to_tensor.h>
#include <torch/csrc/inductor/aoti_runtime/utils.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>
