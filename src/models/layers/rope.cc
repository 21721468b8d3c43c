#include "models/layers/rope.h"

#include <cmath>

namespace glint {

std::vector<float> rope_frequencies(double theta, int rotated) {
  std::vector<float> frequencies;
  const int pairs = rotated / 2;
  for (int j = 0; j < pairs; ++j) {
    frequencies.push_back(static_cast<float>(std::pow(theta, -static_cast<double>(j) / pairs)));
  }
  return frequencies;
}

RopeAngles rope_angles(Exec& exec, const Batch& batch, std::span<const float> frequencies) {
  const std::size_t pairs = frequencies.size();
  auto* cos = exec.workspace.array<float>(batch.tokens.size() * pairs);
  auto* sin = exec.workspace.array<float>(batch.tokens.size() * pairs);
  exec.pool.run(batch.sequences.size(), [&](std::size_t s, int) {
    const SequenceSpan& sequence = batch.sequences[s];
    for (int i = 0; i < sequence.count; ++i) {
      const std::size_t row = static_cast<std::size_t>(sequence.begin + i) * pairs;
      for (std::size_t j = 0; j < pairs; ++j) {
        // The product is rounded to a float as in the reference.
        const float angle = static_cast<float>(sequence.start + i) * frequencies[j];
        cos[row + j] = static_cast<float>(std::cos(static_cast<double>(angle)));
        sin[row + j] = static_cast<float>(std::sin(static_cast<double>(angle)));
      }
    }
  });
  return {cos, sin};
}

}  // namespace glint
