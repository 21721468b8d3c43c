// main() for fuzz targets where libFuzzer is not at hand: runs each seed, each of its prefixes
// (sampled when long) and a fixed number of byte mutations drawn from a fixed seed. A crash or a
// sanitizer report fails the test.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

constexpr int kMutations = 200;
constexpr std::size_t kPrefixes = 64;

void run(const std::string& input) {
  // A copy of the exact size, so that a read past the end is a read past an allocation.
  const std::vector<std::uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

void run_with_mutations(const std::string& seed, std::mt19937& random) {
  run(seed);
  const std::size_t stride = seed.size() / kPrefixes + 1;
  for (std::size_t length = 0; length < seed.size(); length += stride) run(seed.substr(0, length));
  if (seed.empty()) return;
  for (int round = 0; round < kMutations; ++round) {
    std::string changed = seed;
    const int edits = 1 + static_cast<int>(random() % 4);
    for (int edit = 0; edit < edits; ++edit) {
      const std::size_t at = random() % changed.size();
      if (random() % 4 == 0) {
        changed.erase(at, 1 + random() % 8);
        if (changed.empty()) changed = seed;
      } else {
        changed[at] = static_cast<char>(random());
      }
    }
    run(changed);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::mt19937 random(1);
  int seeds = 0;
  run("");
  for (int i = 1; i < argc; ++i) {
    std::vector<std::filesystem::path> files;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(argv[i], error)) {
      files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    for (const auto& file : files) {
      std::ifstream in(file, std::ios::binary);
      run_with_mutations(std::string(std::istreambuf_iterator<char>(in), {}), random);
      ++seeds;
    }
  }
  std::printf("%d seeds\n", seeds);
  if (seeds == 0) std::fprintf(stderr, "no seeds: a fuzz target without any tests nothing\n");
  return seeds == 0 ? 1 : 0;
}
