// Runs the sentence encoder that examples/sentence_encoder.py exported, without Python: encode PACKAGE TOKEN...
//
// TOKENs are the numbers that the model's tokenizer gives for a text. The text, and a second one of the same length
// that is all but empty, become one batch. Prints the embedding of the text, 384 numbers, on one line.

#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

#include <cstdlib>
#include <iostream>
#include <vector>

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: encode PACKAGE TOKEN TOKEN...\n";
    return 2;
  }
  std::vector<int64_t> tokens;
  for (int k = 2; k < argc; ++k) {
    tokens.push_back(std::atoll(argv[k]));
  }
  const auto length = static_cast<int64_t>(tokens.size());

  c10::InferenceMode inference;
  torch::inductor::AOTIModelPackageLoader loader(argv[1]);
  const auto ids = torch::tensor(tokens, torch::kInt64).expand({2, length}).contiguous();
  auto mask = torch::ones({2, length}, torch::kInt64);
  mask.index_put_({1, torch::indexing::Slice(1)}, 0);
  const auto embedding = loader.run({ids, mask})[0][0].contiguous();

  std::cout.precision(9);
  for (int64_t i = 0; i < embedding.numel(); ++i) {
    std::cout << (i ? " " : "") << embedding[i].item<float>();
  }
  std::cout << "\n";
  return 0;
}
