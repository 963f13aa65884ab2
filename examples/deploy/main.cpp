// Runs a function that gtrace exported, without Python: deploy PACKAGE ROWS COLUMNS
//
// PACKAGE is what Exported.save_package wrote. Its one input is a float32 matrix, here of ROWS x COLUMNS numbers
// 0, 0.01, 0.02, ...; every result is printed, one line each. The package checks nothing: the caller answers for
// shapes, dtypes and dense memory.

#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

#include <cstdlib>
#include <iostream>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: deploy PACKAGE ROWS COLUMNS\n";
    return 2;
  }
  const int64_t rows = std::atoll(argv[2]);
  const int64_t columns = std::atoll(argv[3]);

  c10::InferenceMode inference;
  torch::inductor::AOTIModelPackageLoader loader(argv[1]);
  const auto numbers = torch::arange(rows * columns, torch::kFloat32) * 0.01;
  std::vector<at::Tensor> inputs{numbers.reshape({rows, columns})};

  std::cout.precision(9);
  for (const auto& result : loader.run(inputs)) {
    const auto flat = result.contiguous().flatten();
    for (int64_t i = 0; i < flat.numel(); ++i) {
      std::cout << (i ? " " : "") << flat[i].item<float>();
    }
    std::cout << "\n";
  }
  return 0;
}
